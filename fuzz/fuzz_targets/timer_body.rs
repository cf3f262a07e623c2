#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    chronos_fuzz::run(env!("CARGO_BIN_NAME"), data);
});
