//! Rewrites declarations as calls that are looked up at run time, and return an error if a library
//! lacks them.
//!
//! The dynamic loading of bindgen itself panics if a symbol is missing.

use proc_macro2::{Ident, TokenStream};
use quote::quote;
use syn::{File, FnArg, ForeignItem, ForeignItemFn, Item, Pat, PatType, ReturnType, Signature, parse_quote};

/// Replaces all declarations by a table of addresses, `Symbols`, and methods of `Nccl` that call
/// them.
pub(crate) fn rewrite(file: &mut File) {
    let mut declared = Vec::new();
    file.items.retain(|item| match item {
        Item::ForeignMod(block) => {
            declared.extend(block.items.iter().filter_map(function).cloned());
            false
        }
        _ => true,
    });
    let signatures: Vec<&Signature> = declared.iter().map(|function| &function.sig).collect();
    file.items.extend(table(&signatures));
    file.items.push(methods(&signatures));
}

fn function(item: &ForeignItem) -> Option<&ForeignItemFn> {
    match item {
        ForeignItem::Fn(function) => Some(function),
        _ => None,
    }
}

fn table(signatures: &[&Signature]) -> [Item; 2] {
    let name: Vec<&Ident> = signatures.iter().map(|signature| &signature.ident).collect();
    let text: Vec<String> = name.iter().map(ToString::to_string).collect();
    let kind = signatures.iter().map(|signature| {
        let (inputs, output) = (&signature.inputs, &signature.output);
        quote!(unsafe extern "C" fn(#inputs) #output)
    });
    let count = name.len();
    let structure = parse_quote! {
        /// The addresses of the calls in a loaded library.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Symbols { #( pub(crate) #name: Option<#kind>, )* }
    };
    let implementation = parse_quote! {
        impl Symbols {
            /// Looks up all calls.
            ///
            /// # Safety
            ///
            /// Symbols of `library` with these names have NCCL's signatures, and no call runs after
            /// the library is unloaded.
            pub(crate) unsafe fn of(library: &::libloading::Library) -> Self {
                Self { #( #name: unsafe { crate::symbol::address(library, #text) }, )* }
            }

            /// Every call of these bindings, and whether the library has it.
            pub(crate) fn present(&self) -> [(&'static str, bool); #count] {
                [ #( (#text, self.#name.is_some()), )* ]
            }
        }
    };
    [structure, implementation]
}

fn methods(signatures: &[&Signature]) -> Item {
    let methods = signatures.iter().map(|signature| method(signature));
    parse_quote! {
        impl crate::Nccl { #( #methods )* }
    }
}

fn method(signature: &Signature) -> TokenStream {
    let Signature { ident: name, inputs, output, .. } = signature;
    let text = name.to_string();
    let summary = format!(" Calls `{name}`, if the library has it.");
    let arguments = inputs.iter().filter_map(argument);
    let returned = match output {
        ReturnType::Default => quote!(()),
        ReturnType::Type(_, kind) => quote!(#kind),
    };
    quote! {
        #[doc = #summary]
        pub unsafe fn #name(&self, #inputs) -> Result<#returned, crate::MissingSymbol> {
            match self.symbols().#name {
                Some(call) => Ok(unsafe { call( #( #arguments ),* ) }),
                None => Err(self.missing(#text)),
            }
        }
    }
}

fn argument(input: &FnArg) -> Option<&Pat> {
    match input {
        FnArg::Typed(PatType { pat, .. }) => Some(pat),
        FnArg::Receiver(_) => None,
    }
}
