//! Quantizing what cannot be, and to where it cannot be.

use super::model::damaged;
use super::{Beyond, Case, Child, case};
use std::fs;
use std::path::Path;

#[allow(dead_code)]
#[path = "../../models/tests/common/tiny.rs"]
mod tiny;

/// The command that meets most of them.
pub const RUN: &str = "quantize tiny -o q";

/// A little model of bf16 in `tiny`.
pub fn plain(dir: &Path) {
    fs::create_dir(dir.join("tiny")).unwrap();
    for (name, bytes) in tiny::Tiny::new(tiny::Kind::Moe, None).files(&tiny::HF) {
        fs::write(dir.join("tiny").join(name), bytes).unwrap();
    }
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let room = |bytes| Child { files: Some((bytes, Beyond::Error)), ..Child::default() };
    let full = Child { full_output: true, ..Child::default() };
    vec![
        case("7-bits", plain, "quantize tiny -o q --bits 7").usage(),
        case("0-bits", plain, "quantize tiny -o q --bits 0").usage(),
        case("groups-of-48", plain, "quantize tiny -o q --group 48").usage(),
        case("groups-of-0", plain, "quantize tiny -o q --group 0").usage(),
        damaged("quantized-already", |_| ()).run("quantize model -o q"),
        case("onto-itself", plain, "quantize tiny -o tiny"),
        case("no-such-folder", plain, "quantize tiny -o no/such/q"),
        case("without-room", plain, RUN).child(room(1)),
        case("without-room-for-the-data", plain, RUN).child(room(20_000)),
        case("report-without-room", plain, RUN).child(full),
    ]
}
