//! `sqlx::migrate!` reads the folder when it is compiled; without this a new file in it would go unnoticed until the source that
//! calls it changes.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
