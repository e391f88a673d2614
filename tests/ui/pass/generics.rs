//! Type, lifetime and const parameters, and where-clauses.

use std::fmt::{Debug, Display};

use dlock::{LockError, distributed_lock};

use crate::support::{alone, held};

#[distributed_lock(key = "types:<id>")]
async fn types<T, U: Debug>(id: T, value: U) -> Result<(T, String), LockError>
where
    T: Display + Clone,
{
    Ok((id.clone(), format!("{} {value:?}", held())))
}

#[distributed_lock(key = "const:<N>")]
async fn constants<const N: usize>(values: [u8; N]) -> Result<[u8; N], LockError> {
    assert_eq!(held(), format!("const:{N}"));
    Ok(values)
}

#[distributed_lock(key = "lifetime:<key>")]
async fn lifetimes<'a, 'b: 'a>(key: &'a str, value: &'b mut String) -> Result<&'a str, LockError> {
    value.push_str(key);
    Ok(value)
}

#[distributed_lock(key = "elided:<key>")]
async fn elided(key: &u32, _other: std::slice::Iter<'_, u8>) -> Result<String, LockError> {
    Ok(format!("{key} {}", held()))
}

struct Repository<T, const N: usize>([T; N]);

impl<T: Display, const N: usize> Repository<T, N>
where
    T: PartialEq,
{
    #[distributed_lock(key = "<self.0[at]>:<Self::KIND>")]
    async fn find<K>(&self, at: usize, wanted: K) -> Result<Option<&T>, LockError>
    where
        T: PartialEq<K>,
    {
        Ok(self.0.iter().find(|value| **value == wanted))
    }

    const KIND: &'static str = "kind";
}

#[tokio::test]
async fn parameters_of_every_kind() {
    alone(async {
        assert_eq!(
            types(1, 'x').await.expect("free"),
            (1, "types:1 'x'".to_owned())
        );
        assert_eq!(constants([1, 2]).await.expect("free"), [1, 2]);
        let mut text = "a".to_owned();
        assert_eq!(lifetimes("b", &mut text).await.expect("free"), "ab");
        assert_eq!(elided(&3, [].iter()).await.expect("free"), "3 elided:3");
        assert_eq!(Repository([1, 2]).find(0, 2).await.expect("free"), Some(&2));
    })
    .await;
}
