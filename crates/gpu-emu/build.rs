//! Gives the dynamic library the name under which the driver of a real device is looked for.

fn main() {
    // A library that is loaded already is found by this name, whatever its file is called.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    println!("cargo::rerun-if-changed=build.rs");
}
