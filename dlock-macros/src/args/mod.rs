//! The attribute's arguments: from tokens ([`syntax`]) to their meaning.

mod syntax;

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::ToTokens as _;
use syn::parse::Parser as _;
use syn::punctuated::Punctuated;
use syn::{Expr, Lit, LitStr, Path, Token, UnOp};

use self::syntax::Argument;
use crate::duration;
use crate::key::{Key, ungrouped};
use crate::krate::Crate;
use crate::options::{Options, Patience, Variant};

/// The checked arguments.
pub(crate) struct Args {
    pub(crate) key: Key,
    pub(crate) options: Options,
    /// Makes the return value from an error.
    pub(crate) on_error: Option<Expr>,
    /// The path of `dlock`.
    pub(crate) krate: Crate,
}

impl Args {
    pub(crate) fn parse(tokens: TokenStream) -> syn::Result<Self> {
        let arguments = Punctuated::<Argument, Token![,]>::parse_terminated.parse2(tokens)?;
        let mut draft = Draft::default();
        for argument in &arguments {
            draft.set(argument)?;
        }
        draft.finish()
    }
}

/// The arguments while they are read.
#[derive(Default)]
struct Draft<'a> {
    given: Vec<&'a Argument>,
    key: Option<Key>,
    options: Options,
    on_error: Option<Expr>,
    krate: Option<Path>,
}

impl<'a> Draft<'a> {
    fn set(&mut self, argument: &'a Argument) -> syn::Result<()> {
        if self.given.iter().any(|given| given.name == argument.name) {
            return Err(argument.error(format!("`{}` is given twice", argument.name)));
        }
        let options = &mut self.options;
        match argument.name.to_string().as_str() {
            "key" => self.key = Some(Key::new(argument.value("\"stock:<sku>\"")?.clone())?),
            "ttl" => options.ttl = Some(ttl(argument)?),
            "wait" => self.set_patience(argument, Patience::Wait)?,
            "try" => self.set_patience(argument, Patience::Try)?,
            "timeout" => self.set_patience(argument, Patience::Within(duration(argument)?))?,
            "mode" => {
                let choices = [("read", "Read"), ("write", "Write")];
                options.mode = Some(choice(argument, choices)?);
            }
            "permits" => options.permits = Some(permits(argument)?),
            "renew" => options.renew = Some(boolean(argument)?),
            "max_hold" => options.max_hold = Some(duration(argument)?),
            "min_hold" => options.min_hold = Some(duration(argument)?),
            "once" => options.once = Some(duration(argument)?),
            "on_error" => self.on_error = Some(on_error(argument)?),
            "on_lost" => {
                let choices = [("cancel", "Cancel"), ("continue", "Continue")];
                options.on_lost = Some(choice(argument, choices)?);
            }
            "fenced" => {
                argument.flag()?;
                options.fenced = true;
            }
            "crate" => self.krate = Some(path(argument)?),
            _ => return Err(argument.unknown()),
        }
        self.given.push(argument);
        Ok(())
    }

    fn set_patience(&mut self, argument: &Argument, patience: Patience) -> syn::Result<()> {
        if !matches!(patience, Patience::Within(_)) {
            argument.flag()?;
        }
        let other = |given: &&&Argument| ["wait", "try", "timeout"].iter().any(|n| given.name == n);
        if let Some(other) = self.given.iter().find(other) {
            return Err(argument.error(format!(
                "`{}` and `{}` exclude each other; keep one",
                other.name, argument.name
            )));
        }
        self.options.patience = Some(patience);
        Ok(())
    }

    fn finish(self) -> syn::Result<Args> {
        self.check_holds()?;
        self.check_permits()?;
        self.check_once()?;
        let Some(key) = self.key else {
            return Err(syn::Error::new(
                Span::call_site(),
                "no key is given: name the lock, as in \
                 `#[distributed_lock(key = \"stock:<sku>\")]`",
            ));
        };
        let krate = Crate(self.krate);
        Ok(Args {
            key,
            options: self.options,
            on_error: self.on_error,
            krate,
        })
    }
}

/// The function that is called with the error. Refuses a plain value in its place: for this
/// mistake, the compiler would only say that it is not a closure.
fn on_error(argument: &Argument) -> syn::Result<Expr> {
    let value = argument.value("|error| …")?;
    let is = |path: &Expr, names: &[&str]| matches!(path, Expr::Path(path) if names.iter().any(|name| path.path.is_ident(name)));
    let is_value = match ungrouped(value) {
        Expr::Lit(_) | Expr::Tuple(_) | Expr::Array(_) | Expr::Struct(_) => true,
        Expr::Call(call) => is(&call.func, &["Ok", "Err", "Some"]),
        value => is(value, &["None"]),
    };
    if is_value {
        let shown = crate::source::text(value.to_token_stream());
        let message = format!(
            "`on_error` is called with the error, and makes the return value: write \
             `on_error = |_| {shown}`"
        );
        return Err(syn::Error::new_spanned(value, message));
    }
    Ok(value.clone())
}

impl Draft<'_> {
    fn given(&self, name: &str) -> Option<&Argument> {
        self.given.iter().copied().find(|given| given.name == name)
    }

    /// Refuses options that a lock with permits cannot have.
    fn check_permits(&self) -> syn::Result<()> {
        let Some(permits) = &self.options.permits else {
            return Ok(());
        };
        if let Some(argument) = self.given("mode") {
            return Err(
                argument.error("`mode` and `permits` exclude each other; keep one".to_owned())
            );
        }
        match self.given("fenced") {
            Some(argument) if number(permits).is_some_and(|most| most > 1) => Err(argument.error(
                "with several at once, tokens tell nobody who came last, as `fenced` \
                     promises; leave `fenced` or `permits` out"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// Refuses `once` where a mark cannot be kept: a mark needs one key and an exclusive lock.
    fn check_once(&self) -> syn::Result<()> {
        let Some(argument) = self.given("once") else {
            return Ok(());
        };
        if self.options.mode == Some("Read") {
            return Err(argument.error(
                "readers run beside each other; leave `mode = \"read\"` or `once` out".to_owned(),
            ));
        }
        if self.options.permits.is_some() {
            return Err(argument.error(
                "permits let several run at once; leave `permits` or `once` out".to_owned(),
            ));
        }
        match &self.key {
            Some(key) if key.is_several() => Err(argument.error(
                "it remembers one key, and there are several; give one, or leave `once` out"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// Refuses times of a lease that contradict each other. The runtime checks this too, for times
    /// that meet only there.
    fn check_holds(&self) -> syn::Result<()> {
        let given = |name: &str| self.given(name);
        let Options {
            renew,
            max_hold,
            min_hold,
            ..
        } = self.options;
        if let (Some(false), Some(argument)) = (renew, given("max_hold")) {
            return Err(argument.error(
                "`max_hold` ends the renewals of a lease that `renew = false` never renews; leave \
                 one of the two out"
                    .to_owned(),
            ));
        }
        match (min_hold, max_hold, given("min_hold")) {
            (Some(least), Some(limit), Some(argument)) if least > limit => {
                Err(syn::Error::new_spanned(
                    argument.value("\"5s\"")?,
                    format!(
                        "`min_hold` is longer than the `max_hold` of {limit:?}; make it shorter"
                    ),
                ))
            }
            _ => Ok(()),
        }
    }
}

/// No store keeps a shorter lease; the same as `MIN_TTL` of the runtime.
const MIN_TTL: Duration = Duration::from_millis(10);

/// The runtime refuses longer times in any setting.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

fn ttl(argument: &Argument) -> syn::Result<Duration> {
    let ttl = duration(argument)?;
    if ttl < MIN_TTL {
        let message = format!("no store keeps a lease of {ttl:?}; give at least `10ms`");
        return Err(syn::Error::new_spanned(argument.value("\"30s\"")?, message));
    }
    Ok(ttl)
}

fn duration(argument: &Argument) -> syn::Result<Duration> {
    let example = "\"30s\"";
    let value = argument.value(example)?;
    let Some(text) = string(value) else {
        let name = &argument.name;
        let at_run_time = match ungrouped(value) {
            Expr::Lit(_) => String::new(),
            _ => format!(
                "; a time that is known only at run time can be given to \
                 `dlock::lock(key).{name}(…)`"
            ),
        };
        return Err(syn::Error::new_spanned(
            value,
            format!("`{name}` is a duration in quotes, with its unit: `{example}`{at_run_time}"),
        ));
    };
    match duration::parse(&text.value()) {
        Ok(duration) if duration > LONGEST => Err(syn::Error::new(
            text.span(),
            format!(
                "`{}` is more than ten years; give a shorter time",
                text.value()
            ),
        )),
        Ok(duration) => Ok(duration),
        Err(message) => Err(syn::Error::new(text.span(), message)),
    }
}

/// A number, or an expression that the runtime checks.
fn permits(argument: &Argument) -> syn::Result<Expr> {
    let value = argument.value("10")?;
    let refuse = |what: &str| {
        let message = format!("{what}; write a whole number from 1 on, such as `permits = 10`");
        Err(syn::Error::new_spanned(value, message))
    };
    match ungrouped(value) {
        Expr::Lit(literal) => match (&literal.lit, number(value)) {
            (Lit::Int(_), Some(1..)) => {}
            (Lit::Int(_), Some(0)) => return refuse("nobody could have one of no permits"),
            (Lit::Int(_), None) => return refuse("these are too many permits"),
            _ => return refuse("`permits` is a number, or an expression that gives one"),
        },
        Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => {
            return refuse("there are no permits below one");
        }
        _ => {}
    }
    Ok(value.clone())
}

/// The value of a literal number.
pub(crate) fn number(value: &Expr) -> Option<u32> {
    match ungrouped(value) {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => number.base10_parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

/// One of two words, each with its variant.
fn choice(argument: &Argument, choices: [(&str, Variant); 2]) -> syn::Result<Variant> {
    let [(first, _), (second, _)] = choices;
    let value = argument.value(&format!("\"{first}\""))?;
    let text = string(value).map(LitStr::value);
    let chosen = choices
        .iter()
        .find(|(word, _)| text.as_deref() == Some(word));
    chosen.map(|(_, variant)| *variant).ok_or_else(|| {
        let name = &argument.name;
        syn::Error::new_spanned(
            value,
            format!("`{name}` is `\"{first}\"` or `\"{second}\"`"),
        )
    })
}

fn boolean(argument: &Argument) -> syn::Result<bool> {
    let value = argument.value("false")?;
    match ungrouped(value) {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Bool(boolean) => Some(boolean.value),
            _ => None,
        },
        _ => None,
    }
    .ok_or_else(|| {
        syn::Error::new_spanned(value, format!("`{}` is `true` or `false`", argument.name))
    })
}

fn path(argument: &Argument) -> syn::Result<Path> {
    let value = argument.value("::dlock")?;
    match ungrouped(value) {
        Expr::Path(path) if path.qself.is_none() => Ok(path.path.clone()),
        _ => Err(syn::Error::new_spanned(
            value,
            "`crate` is the path of the crate `dlock`, without quotes: `crate = ::my_dlock`",
        )),
    }
}

fn string(value: &Expr) -> Option<&LitStr> {
    match ungrouped(value) {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}
