//! `isobit bench`: a configuration or a context that is not there, and measurements that contradict themselves.

use super::model;
use super::{Case, case};
use std::fs;

/// All cases.
pub fn cases() -> Vec<Case> {
    let good = |name: &str, args: &str| model::damaged(name, |_| ()).run(args);
    vec![
        case("no-folder", |_| (), "bench --config nowhere --weights random:1"),
        case(
            "a-folder-without-a-configuration",
            |dir| fs::create_dir(dir.join("empty")).unwrap(),
            "bench --config empty --weights random:1",
        ),
        good("a-configuration-without-weights", "bench --config model").usage(),
        good("a-configuration-and-a-model", "bench demo --config model --weights random:1").usage(),
        good("more-positions-than-the-model-has", "bench model --depth 0,4000000000 --target x86-64-v3"),
        good("a-context-too-small", "bench model --depth 0,100 -n 64 --context 163").usage(),
        good("a-depth-that-is-no-number", "bench model --depth 0,x").usage(),
        good("a-prompt-of-nothing", "bench model --prefill 128,0").usage(),
        good("no-tokens", "bench model -n 0").usage(),
        good("no-times", "bench model --repeat 0").usage(),
        good("a-launch-mode-on-the-processor", "bench model --device cpu --launch graph").usage(),
        good("a-schedule-that-is-none", "bench model --schedule gpu=1/2/3").usage(),
        good("a-schedule-of-nothing", "bench model --schedule tpu=1/1/1/16/0/0/1/0/1/1/0/0/0").usage(),
        good("a-repeat-of-a-batch", "run model --repeat 2 --batch file").usage(),
    ]
}
