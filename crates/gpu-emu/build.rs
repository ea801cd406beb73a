//! Gives the dynamic library the soname of a real driver, by which it is looked up.

fn main() {
    // The loader finds an already loaded library by its soname, whatever the name of its file.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    println!("cargo::rerun-if-changed=build.rs");
}
