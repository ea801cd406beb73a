//! Translates `#define NCCL_..._INITIALIZER { ... }` to constants of the initialized structs.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::{Expr, Fields, File, ImplItem, Item, Type, parse_quote};

/// The error of an initializer that could not be translated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InitializerError {
    #[error("{initializer} does not begin with the size of a struct")]
    NoStruct { initializer: String },
    #[error("{initializer} has {values} values for the {fields} members of {name}")]
    Length { initializer: String, name: String, values: usize, fields: usize },
    #[error("{initializer} has a value that is no constant: {value}")]
    Value { initializer: String, value: String },
}

/// Appends a constant for every initializer of the header.
pub(crate) fn append(file: &mut File, header: &str) -> Result<(), InitializerError> {
    for (name, values) in definitions(&without_comments(header)) {
        let item = constant(file, &name, &values)?;
        file.items.push(item);
    }
    Ok(())
}

/// Returns the names of all initializers and the texts between their braces.
fn definitions(header: &str) -> Vec<(String, Vec<String>)> {
    let header = header.replace("\\\n", " ");
    let definition = |line: &str| {
        let (name, rest) = line.strip_prefix("#define ")?.split_once(char::is_whitespace)?;
        let body = rest.trim().strip_prefix('{')?.strip_suffix('}')?;
        let values = body.split(',').map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        name.ends_with("_INITIALIZER").then(|| (name.to_owned(), values.collect()))
    };
    header.lines().filter_map(definition).collect()
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let mut kept = parts.next().unwrap_or("").to_owned();
    for part in parts {
        kept.push_str(part.split_once("*/").map_or("", |(_comment, rest)| rest));
    }
    // The line end is kept before its break, to find continued lines.
    kept.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn constant(file: &File, initializer: &str, values: &[String]) -> Result<Item, InitializerError> {
    let initializer = initializer.to_owned();
    let size = values.first().and_then(|size| size.strip_prefix("sizeof(")?.strip_suffix(')'));
    let Some((name, fields)) = size.and_then(|name| Some((name, fields(file, name)?))) else {
        return Err(InitializerError::NoStruct { initializer });
    };
    if fields.len() != values.len() {
        let name = name.to_owned();
        return Err(InitializerError::Length {
            initializer,
            name,
            values: values.len(),
            fields: fields.len(),
        });
    }
    let structure = format_ident!("{name}");
    let mut written = Vec::new();
    for (field, value) in fields.iter().zip(values) {
        let expression = expression(file, &structure, value).ok_or_else(|| InitializerError::Value {
            initializer: initializer.clone(),
            value: value.clone(),
        })?;
        written.push(quote!(#field: #expression));
    }
    let constant = format_ident!("{initializer}");
    Ok(parse_quote! { pub const #constant: #structure = #structure { #( #written, )* }; })
}

/// Returns the members of a struct or type alias, in order.
fn fields<'a>(file: &'a File, name: &str) -> Option<Vec<&'a Ident>> {
    let named = |item: &'a Item| match item {
        Item::Struct(found) if found.ident == name => match &found.fields {
            Fields::Named(fields) => {
                Some(fields.named.iter().filter_map(|field| field.ident.as_ref()).collect())
            }
            _ => None,
        },
        Item::Type(alias) if alias.ident == name => match &*alias.ty {
            Type::Path(path) => fields(file, &path.path.get_ident()?.to_string()),
            _ => None,
        },
        _ => None,
    };
    file.items.iter().find_map(named)
}

/// Translates a value of the header to Rust, with the type of the member.
fn expression(file: &File, structure: &Ident, value: &str) -> Option<TokenStream> {
    if value.starts_with("sizeof(") {
        return Some(quote!(size_of::<#structure>()));
    }
    if value == "NCCL_CONFIG_UNDEF_PTR" {
        return Some(quote!(::core::ptr::null_mut()));
    }
    if let Some(enumeration) = enumeration(file, value) {
        let value = format_ident!("{value}");
        return Some(quote!(#enumeration::#value.0 as _));
    }
    let constant: Expr = syn::parse_str(value).ok()?;
    matches!(constant, Expr::Lit(_) | Expr::Path(_)).then(|| quote!(#constant as _))
}

/// Returns the enumeration that has this value.
fn enumeration<'a>(file: &'a File, value: &str) -> Option<&'a Type> {
    let has = |item: &ImplItem| matches!(item, ImplItem::Const(found) if found.ident == value);
    file.items.iter().find_map(|item| match item {
        Item::Impl(block) if block.items.iter().any(has) => Some(&*block.self_ty),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRUCTS: &str = "pub struct s_v1 { pub size: usize, pub mode: i32, pub name: *const u8 }
        pub type s_t = s_v1;
        impl mode_t { pub const ON: mode_t = mode_t(1); }";

    /// The constants of the header, as text without spaces.
    fn constants(header: &str) -> Result<String, InitializerError> {
        let mut file = syn::parse_file(STRUCTS).unwrap();
        let before = file.items.len();
        append(&mut file, header)?;
        let added = &file.items[before..];
        Ok(quote!(#( #added )*).to_string().replace(' ', ""))
    }

    #[test]
    fn values_are_those_of_the_members_in_order() {
        let header = "#define S_INITIALIZER { \\\n sizeof(s_t), /* size, */ \\\n ON, /* mode */ \\\n \
                      NCCL_CONFIG_UNDEF_PTR, /* name */ \\\n}\n#define OTHER { 1 }\n";
        let expected = "pubconstS_INITIALIZER:s_t=s_t{size:size_of::<s_t>(),mode:mode_t::ON.0as_,\
                        name:::core::ptr::null_mut(),};";
        assert_eq!(constants(header).unwrap(), expected);
        assert_eq!(constants("int x;").unwrap(), "");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let fails = |body: &str| constants(&format!("#define S_INITIALIZER {{ {body} }}\n")).unwrap_err();
        assert!(matches!(fails("1, 2, 3"), InitializerError::NoStruct { .. }));
        assert!(matches!(fails("sizeof(t), 2, 3"), InitializerError::NoStruct { .. }));
        assert!(matches!(fails("sizeof(s_t), 2"), InitializerError::Length { values: 2, fields: 3, .. }));
        assert!(matches!(fails("sizeof(s_t), f(2), 3"), InitializerError::Value { .. }));
    }
}
