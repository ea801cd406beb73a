//! Moves declarations into the macro `calls!` of `nccl-sys`, whose calls are looked up at run time
//! and return an error if a library lacks them.
//!
//! The dynamic loading of bindgen itself panics if a symbol is missing.

use syn::{File, ForeignItem, Item, ItemForeignMod, parse_quote};

/// The start of declarations, and of the macro in its place.
const DECLARED: &str = "unsafe extern \"C\" {";
const MACRO: &str = "crate::symbol::calls! {";

/// Removes all declarations from the file, and returns the text of the macro with them.
pub(crate) fn take(file: &mut File) -> String {
    let mut all: ItemForeignMod = parse_quote!(
        unsafe extern "C" {}
    );
    file.items.retain_mut(|item| match item {
        Item::ForeignMod(block) => {
            all.items.append(&mut block.items);
            false
        }
        _ => true,
    });
    // The returned type already has the attribute.
    for item in &mut all.items {
        if let ForeignItem::Fn(function) = item {
            function.attrs.retain(|attribute| !attribute.path().is_ident("must_use"));
        }
    }
    let declarations: File = parse_quote!(#all);
    prettyplease::unparse(&declarations).replacen(DECLARED, MACRO, 1)
}
