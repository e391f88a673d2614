#!/usr/bin/env bash
# Builds the book of `docs/` into the target folder, with a mdBook that it installs there.
#
#   ./tests/book.sh
#
# Pages link to each other, and to files beside `docs/`. Those are not in the book: there
# such links lead to the repository.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${CARGO_TARGET_DIR:-target}
mdbook=$target/tools/bin/mdbook
version=0.5.4

# Without what serves and searches a book, and without optimising: 90 seconds of a processor.
[ "$("$mdbook" --version 2>/dev/null)" = "mdbook v$version" ] ||
  cargo install mdbook --version "$version" --locked --quiet --no-default-features --debug --root "$target/tools"

source=$target/book/source book=$target/book/html
rm -rf "$target/book"
mkdir -p "$target/book"
cp -r docs "$source"
repository=$(sed -n 's/^git-repository-url = "\(.*\)"/\1/p' docs/book.toml)
sed -i "s|](\.\./|]($repository/blob/HEAD/|g" "$source"/*.md
sed -i "s|](\.\./\.\./|]($repository/blob/HEAD/|g" "$source"/*/*.md

"$mdbook" build "$source" --dest-dir "$(realpath -m "$book")"
# What is still a link to a file that is no page leads nowhere.
if grep -rnoE --include='*.html' 'href="[^":]*\.(md|rs|sh|lua|toml)[#"]' "$book"; then
  echo "These links lead out of the book" >&2
  exit 1
fi
echo "$book/index.html"
