//! The names in a template that can only be arguments.

use proc_macro2::Ident;
use syn::Expr;
use syn::ext::IdentExt as _;

/// Calls `with` on each name whose value the expression reads and which can only be an argument:
/// not a constant, a function, or a name that the expression binds itself.
///
/// The compiler would find unknown names too, but it would take the whole template for the name and
/// propose to replace it.
pub(super) fn for_each(
    expression: &Expr,
    with: &mut impl FnMut(&Ident) -> syn::Result<()>,
) -> syn::Result<()> {
    match expression {
        Expr::Path(path) => match path.path.get_ident() {
            Some(name) if is_variable(name) => with(name),
            _ => Ok(()),
        },
        Expr::Binary(binary) => {
            for_each(&binary.left, with)?;
            for_each(&binary.right, with)
        }
        Expr::Index(index) => {
            for_each(&index.expr, with)?;
            for_each(&index.index, with)
        }
        // Without the arguments of the call, which may be functions.
        Expr::MethodCall(call) => for_each(&call.receiver, with),
        Expr::Field(field) => for_each(&field.base, with),
        Expr::Await(wait) => for_each(&wait.base, with),
        Expr::Cast(cast) => for_each(&cast.expr, with),
        Expr::Group(group) => for_each(&group.expr, with),
        Expr::Paren(paren) => for_each(&paren.expr, with),
        Expr::Reference(reference) => for_each(&reference.expr, with),
        Expr::Try(attempt) => for_each(&attempt.expr, with),
        Expr::Unary(unary) => for_each(&unary.expr, with),
        _ => Ok(()),
    }
}

/// Names of constants, statics and unit structs begin with a capital.
fn is_variable(name: &Ident) -> bool {
    !name.unraw().to_string().starts_with(char::is_uppercase)
}
