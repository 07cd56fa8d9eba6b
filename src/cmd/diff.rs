//! `isobit diff`: where two runs, or two programs, differ first. Exit code 0: they are equal, 1: they differ, 2: they could not be
//! compared.

use super::Stop;
use crate::args::DiffArgs;
use crate::diff::{Verdict, folders, tensors, traces};
use crate::files::{self, failed};
use crate::printer::Printer;
use crate::trace::{Trace, values_file};
use ir::diag::{Diagnostic, Result};
use models::checkpoint::TensorFile;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

/// How the first line of a trace begins.
const TRACE: &[u8] = b"{\"isobit_trace\"";

/// Runs it.
pub fn run(args: &DiffArgs, p: &mut Printer) -> Result<(), Stop> {
    tell(&compare(args)?, args.json, p)
}

/// Prints a verdict, which is the exit code too.
pub(super) fn tell(v: &Verdict, json: bool, p: &mut Printer) -> Result<(), Stop> {
    if json {
        p.line(&v.json.to_string())?
    } else {
        p.data(&v.text)?
    }
    if v.equal { Ok(()) } else { Err(Stop::Differs) }
}

fn compare(args: &DiffArgs) -> Result<Verdict> {
    let (a, b) = (&args.a, &args.b);
    if args.values {
        let names = match &args.map {
            Some(map) => {
                let text = fs::read_to_string(map).map_err(|e| failed("cannot be read", map, &e))?;
                tensors::map_of(&text, &map.display().to_string())?
            }
            None => BTreeMap::new(),
        };
        return tensors::diff(&TensorFile::open(a)?, &TensorFile::open(b)?, &names);
    }
    match [kind(a)?, kind(b)?] {
        [Kind::Trace, Kind::Trace] => {
            let (x, y) = (Trace::open(a)?, Trace::open(b)?);
            let (v, w) = (stored(a)?, stored(b)?);
            let side = |path: &Path, trace, values| traces::Side { name: path.display().to_string(), trace, values };
            traces::diff(&side(a, &x, v.as_ref()), &side(b, &y, w.as_ref()))
        }
        [x, y] if x == y && x != Kind::Tensors => folders::diff(a, b),
        [Kind::Tensors, Kind::Tensors] => Err(Diagnostic::new("E0804", "these are files of tensors")
            .at(a.display())
            .hint("`isobit diff --values A B` compares them")),
        [x, y] => {
            let m = format!("{} is {}, {} is {}", a.display(), x.name(), b.display(), y.name());
            Err(Diagnostic::new("E0804", m).hint("two traces, two artifacts, two folders or two files are compared"))
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Trace,
    Folder,
    Tensors,
    File,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Trace => "a trace",
            Kind::Folder => "a folder",
            Kind::Tensors => "a file of tensors",
            Kind::File => "a file",
        }
    }
}

fn kind(path: &Path) -> Result<Kind> {
    let meta = fs::metadata(path).map_err(|e| failed("cannot be read", path, &e))?;
    if meta.is_dir() {
        return Ok(Kind::Folder);
    }
    if !meta.is_file() {
        return Err(Diagnostic::new("E0760", "this is neither a file nor a folder").at(path.display()));
    }
    let mut start = vec![];
    let read = File::open(path).and_then(|f| f.take(TRACE.len() as u64).read_to_end(&mut start));
    read.map_err(|e| failed("cannot be read", path, &e))?;
    Ok(match path.extension().and_then(|e| e.to_str()) {
        _ if start == TRACE => Kind::Trace,
        // What ought to be one, so that it is told what is wrong with it.
        Some("trace") => Kind::Trace,
        Some("safetensors") => Kind::Tensors,
        _ => Kind::File,
    })
}

/// The values that were stored beside a trace, if there are some.
fn stored(trace: &Path) -> Result<Option<TensorFile>> {
    let path = values_file(trace);
    files::is_there(&path).then(|| TensorFile::open(&path)).transpose()
}
