//! Arguments that are patterns.

use dlock::distributed_lock;

use crate::support::{ShopError, alone, held};

struct Path<T>(T);

struct Query {
    page: u32,
    size: String,
}

#[distributed_lock(key = "mut:<number>")]
async fn mutable(mut number: u32, mut text: String) -> Result<String, ShopError> {
    number += 1;
    text.push_str(&held());
    Ok(format!("{text} {number}"))
}

#[distributed_lock(key = "tuple:<a>:<c>")]
async fn tuple((a, mut b): (u32, String), (c, _): (u8, String)) -> Result<String, ShopError> {
    b.push('!');
    Ok(format!("{a} {b} {c} {}", held()))
}

#[distributed_lock(key = "slice:<first>")]
async fn slice([first, rest @ ..]: [u32; 3], &[x, y]: &[u8; 2]) -> Result<u32, ShopError> {
    Ok(first + rest.iter().sum::<u32>() + u32::from(x + y))
}

#[distributed_lock(key = "order:<id>")]
async fn extractor(
    Path(id): Path<u64>,
    Query {
        page,
        size: mut length,
        ..
    }: Query,
) -> Result<String, ShopError> {
    length.push('s');
    Ok(format!("{id} {page} {length} {}", held()))
}

#[allow(clippy::toplevel_ref_arg)]
#[distributed_lock(key = "refs:<b>")]
async fn references(ref a: String, &b: &u32, ref mut c: u32) -> Result<String, ShopError> {
    *c += 1;
    Ok(format!("{a} {b} {c}"))
}

#[distributed_lock(key = "wild")]
async fn wild(_: String, _named: String, (): ()) -> Result<(), ShopError> {
    Ok(())
}

#[tokio::test]
async fn patterns_bind_as_they_do_everywhere() {
    alone(async {
        assert_eq!(mutable(1, "a".to_owned()).await.as_deref(), Ok("amut:1 2"));
        let shown = tuple((1, "b".to_owned()), (3, String::new())).await;
        assert_eq!(shown.as_deref(), Ok("1 b! 3 tuple:1:3"));
        assert_eq!(slice([1, 2, 3], &[4, 5]).await, Ok(15));
        let query = Query {
            page: 2,
            size: "9".to_owned(),
        };
        assert_eq!(
            extractor(Path(7), query).await.as_deref(),
            Ok("7 2 9s order:7")
        );
        assert_eq!(
            references("a".to_owned(), &2, 3).await.as_deref(),
            Ok("a 2 4")
        );
        assert_eq!(wild(String::new(), String::new(), ()).await, Ok(()));
    })
    .await;
}
