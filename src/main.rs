//! The `isobit` program: parses the command line, runs the command, and turns its end into an exit code.
//! 0: done. 1: it failed, or what was compared differs, or a promise does not hold. 2: the command line is wrong, or a comparison or an
//! audit failed. 101: a bug in isobit.

use clap::Parser;
use isobit::args::Cli;
use isobit::cmd::{self, Stop};
use isobit::printer::Printer;
use std::process::ExitCode;

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|info| {
        if models::text::panic_is_caught() {
            return; // a library gave up on its input, which becomes an error
        }
        let what = info.payload_as_str().unwrap_or("a panic");
        let place = info.location().map_or(String::new(), |l| format!(" at {}:{}", l.file(), l.line()));
        eprintln!("isobit has a bug: {what}{place}; please report this line with the command that led to it");
        std::process::exit(101);
    }));
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Help goes to standard output, errors to standard error; a reader may have gone.
            let _ = e.print();
            return ExitCode::from(e.exit_code() as u8);
        }
    };
    let mut printer = Printer::new();
    let result = cmd::dispatch(&cli.command, &mut printer);
    printer.clear();
    match result {
        Ok(()) | Err(Stop::BrokenPipe) => ExitCode::SUCCESS,
        Err(Stop::Differs) => ExitCode::from(1),
        Err(Stop::Failed(d)) => {
            printer.error(&d);
            ExitCode::from(cmd::exit_code(&cli.command, &d))
        }
    }
}
