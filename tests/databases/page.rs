//! The SQL of `docs/stores/sql.md`, as its reader runs it.

use super::Database;

/// The statements of a section, of the block that is about this database.
pub(crate) fn statements<D: Database>(section: &str) -> Vec<&'static str> {
    let page = include_str!("../../docs/stores/sql.md");
    let (_, section) = page.split_once(&format!("# {section}\n")).expect(section);
    let (section, _) = section.split_once("\n#").expect("its end");
    let block = section
        .split("```sql\n")
        .nth(1 + D::BLOCK)
        .expect("its block");
    let (block, _) = block.split_once("```").expect("its end");
    block.split_terminator(";\n").collect()
}
