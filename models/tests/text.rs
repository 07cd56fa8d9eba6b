//! Tokenizer, templates and streams against the Python references: `data/text/cases.jsonl`, made by `data/text/make.py`.
//! Each comparison is a function of what is compared, and is shown to catch the fault that it is for.

mod common;

use common::DEMO;
use models::{Checkpoint, Message, Role, Text};
use serde_json::Value;
use std::borrow::Cow;
use std::fs;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/text");

/// The demo model with some files changed.
fn model(changes: &[(&str, String)]) -> Text {
    let mut files: Vec<(String, Cow<'static, [u8]>)> = vec![];
    for e in fs::read_dir(DEMO).unwrap() {
        let e = e.unwrap();
        let name = e.file_name().into_string().unwrap();
        if changes.iter().all(|(n, _)| *n != name) {
            files.push((name, Cow::Owned(fs::read(e.path()).unwrap())));
        }
    }
    files.extend(changes.iter().map(|(n, c)| (n.to_string(), Cow::Owned(c.clone().into_bytes()))));
    Text::load(&Checkpoint::from_memory(files).unwrap()).unwrap()
}

fn with_template(name: &str) -> Text {
    model(&[("chat_template.jinja", fs::read_to_string(format!("{DATA}/{name}.jinja")).unwrap())])
}

fn cases() -> Vec<Value> {
    let all = fs::read_to_string(format!("{DATA}/cases.jsonl")).unwrap();
    all.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// Cases that have a string.
fn strings() -> Vec<Value> {
    cases().into_iter().filter(|c| c["text"].is_array()).collect()
}

fn of_kind(kind: &str) -> Vec<Value> {
    cases().into_iter().filter(|c| c["kind"] == kind).collect()
}

/// `["a", ["b", 3]]` is `abbb`.
fn text_of(parts: &Value) -> String {
    let part = |p: &Value| match p {
        Value::String(s) => s.clone(),
        p => p[0].as_str().unwrap().repeat(p[1].as_u64().unwrap() as usize),
    };
    parts.as_array().unwrap().iter().map(part).collect()
}

/// `[1, [[2, 3], 2]]` is 1, 2, 3, 2, 3; nothing is nothing.
fn ids_of(list: &Value) -> Option<Vec<u32>> {
    let id = |v: &Value| v.as_u64().unwrap() as u32;
    let item = |v: &Value| match v {
        Value::Number(_) => vec![id(v)],
        v => v[0].as_array().unwrap().iter().map(id).collect::<Vec<u32>>().repeat(v[1].as_u64().unwrap() as usize),
    };
    Some(list.as_array()?.iter().flat_map(item).collect())
}

fn messages_of(case: &Value) -> Vec<Message> {
    let message = |m: &Value| {
        let role = match m[0].as_str().unwrap() {
            "system" => Role::System,
            "developer" => Role::Developer,
            "user" => Role::User,
            "assistant" => Role::Model,
            other => panic!("no role {other}"),
        };
        Message::new(role, m[1].as_str().unwrap())
    };
    case["messages"].as_array().unwrap().iter().map(message).collect()
}

fn short(text: &str) -> String {
    let mut out: String = text.chars().take(60).collect();
    if out.len() < text.len() {
        out.push('…');
    }
    format!("{out:?}")
}

/// Strings whose ids, with control tokens that are spelled as text and as tokens, are not the expected ones.
fn wrong_ids(cases: &[Value], encode: impl Fn(&str, bool) -> Vec<u32>) -> Vec<String> {
    let mut bad = vec![];
    for c in cases {
        let (text, plain) = (text_of(&c["text"]), ids_of(&c["ids"]).unwrap());
        let meant = ids_of(&c["special"]).unwrap_or_else(|| plain.clone());
        for (special, want) in [(false, plain), (true, meant)] {
            if encode(&text, special) != want {
                bad.push(format!("{}, special {special}: {}", c["kind"], short(&text)));
            }
        }
    }
    bad
}

/// Texts of ids that are not the expected ones, with control tokens shown and not.
fn wrong_texts(cases: &[Value], decode: impl Fn(&[u32], bool) -> String) -> Vec<String> {
    let mut bad = vec![];
    let mut see = |ids: Vec<u32>, skip: bool, want: String| {
        if decode(&ids, skip) != want {
            bad.push(format!("skip {skip}: {}", short(&want)));
        }
    };
    for c in cases {
        let want = c["decoded"].as_str().map_or_else(|| text_of(&c["text"]), str::to_string);
        see(ids_of(&c["ids"]).unwrap(), false, want);
        if let Some(want) = c["visible"].as_str() {
            see(ids_of(&c["special"]).or_else(|| ids_of(&c["ids"])).unwrap(), true, want.to_string());
        }
    }
    bad
}

/// A stream as one text. Each piece is valid UTF-8 by its type; a character that was broken is not in the whole.
fn streamed(text: &Text, ids: &[u32], skip: bool) -> String {
    let mut stream = text.stream(skip);
    let mut out: String = ids.iter().map(|id| stream.push(*id)).collect();
    out.push_str(&stream.finish());
    out
}

#[test]
fn two_thousand_awkward_strings() {
    let (text, strings) = (model(&[]), strings());
    assert_eq!(strings.len(), 2000);
    assert_eq!(wrong_ids(&strings, |s, special| text.encode(s, special).unwrap()), [""; 0]);
    assert_eq!(wrong_texts(&strings, |ids, skip| text.decode(ids, skip)), [""; 0]);
    assert_eq!(wrong_texts(&strings, |ids, skip| streamed(&text, ids, skip)), [""; 0]);
    assert!(strings.iter().filter(|c| c["special"].is_array()).count() > 400);
}

#[test]
fn lone_bytes_decode_as_the_reference_decodes_them() {
    let (text, lists) = (model(&[]), of_kind("decode"));
    assert!(lists.len() >= 100 && lists.iter().filter(|c| c["decoded"].as_str().unwrap().contains('\u{fffd}')).count() > 50);
    assert_eq!(wrong_texts(&lists, |ids, skip| text.decode(ids, skip)), [""; 0]);
    assert_eq!(wrong_texts(&lists, |ids, skip| streamed(&text, ids, skip)), [""; 0]);
}

/// The library has only the text that `finish` gives for bytes that wait at the end.
#[test]
fn streams_show_what_is_certain() {
    let text = model(&[]);
    let mut stream = text.stream(false);
    let cup = text.encode("🍵", false).unwrap();
    assert_eq!(cup.len(), 4, "not bytes: choose another character");
    assert!(cup.iter().all(|id| stream.push(*id).is_empty()));
    assert_eq!(stream.push(text.id("▁the").unwrap()), "🍵 the");
    assert_eq!(stream.push(cup[0]) + &stream.finish(), "\u{fffd}");
}

/// A merge that is taken too late is seen in most places; where it is not, it has no rival in the vocabulary.
#[test]
fn a_changed_merge_rank_is_caught() {
    let strings: Vec<Value> =
        strings().into_iter().filter(|c| ["merges", "vocabulary", "letters"].iter().any(|k| c["kind"] == *k)).collect();
    assert!(strings.len() > 100);
    let file: Value = serde_json::from_slice(&fs::read(format!("{DEMO}/tokenizer.json")).unwrap()).unwrap();
    let caught = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut file = file.clone();
        change(file["model"]["merges"].as_array_mut().unwrap());
        let text = model(&[("tokenizer.json", file.to_string())]);
        !wrong_ids(&strings, |s, special| text.encode(s, special).unwrap()).is_empty()
    };
    assert!(!caught(&|_| {}));
    let late = |at: usize| {
        caught(&|merges| {
            let moved = merges.remove(at);
            merges.push(moved);
        })
    };
    let count = (0..3600).step_by(300).filter(|at| late(*at)).count();
    assert!(count >= 6, "{count} of 12");
}

/// What tokenizer_config.json calls special is special, whatever tokenizer.json says of it; the same in transformers.
#[test]
fn tokens_are_special_in_either_file() {
    let read = |name: &str| fs::read_to_string(format!("{DEMO}/{name}")).unwrap();
    let mut file: Value = serde_json::from_str(&read("tokenizer.json")).unwrap();
    for t in file["added_tokens"].as_array_mut().unwrap() {
        t["special"] = false.into();
    }
    let mut config: Value = serde_json::from_str(&read("tokenizer_config.json")).unwrap();
    config["additional_special_tokens"] = serde_json::json!(["<unused7>", {"content": "<unused8>"}]);
    let text = model(&[("tokenizer.json", file.to_string()), ("tokenizer_config.json", config.to_string())]);
    let all = "<|think|><mask><unused7><unused8><|tool><unused5>";
    let special = |ids: Vec<u32>| ids.into_iter().filter(|id| text.is_special(*id)).collect::<Vec<u32>>();
    assert_eq!(special(text.encode(all, true).unwrap()), [98, 4, 12, 13]);
    assert_eq!(special(text.encode(all, false).unwrap()), [0u32; 0]);
    assert!(text.encode(all, false).unwrap().ends_with(&[46, 10]));
    assert_eq!(text.decode(&text.encode(all, true).unwrap(), true), "<|tool><unused5>");
}

/// Streams that people write first.
#[test]
fn a_stream_that_breaks_a_character_is_caught() {
    let (text, lists) = (model(&[]), [strings(), of_kind("decode")].concat());
    let each_alone = |ids: &[u32], skip: bool| ids.iter().map(|id| text.decode(&[*id], skip)).collect::<String>();
    assert_ne!(wrong_texts(&lists, each_alone), [""; 0]);
    let no_end = |ids: &[u32], skip: bool| {
        let mut stream = text.stream(skip);
        ids.iter().map(|id| stream.push(*id)).collect::<String>()
    };
    assert_ne!(wrong_texts(&lists, no_end), [""; 0]);
    // One U+FFFD for each broken sequence, as `String::from_utf8_lossy` does it.
    let lossy = |ids: &[u32], skip: bool| {
        let mut bytes = vec![];
        for id in ids.iter().filter(|id| !(skip && text.is_special(**id))) {
            let token = text.token(*id).unwrap_or_default();
            match token.strip_prefix("<0x").and_then(|t| u8::from_str_radix(t.trim_end_matches('>'), 16).ok()) {
                Some(b) => bytes.push(b),
                None => bytes.extend(token.replace('▁', " ").bytes()),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    assert_ne!(wrong_texts(&lists, lossy), [""; 0]);
}

/// Prompts that are not the expected ones, or do not start with exactly one bos.
fn wrong_prompts(
    template: &str,
    render: impl Fn(&[Message], bool) -> String,
    ids: impl Fn(&Value, bool) -> Vec<u32>,
) -> Vec<String> {
    let mut bad = vec![];
    let mut seen = 0;
    for c in of_kind("chat").iter().filter(|c| c["template"] == template) {
        seen += 1;
        let (messages, thinking) = (messages_of(c), c["thinking"].as_bool().unwrap());
        if render(&messages, thinking) != c["rendered"].as_str().unwrap() {
            bad.push(format!("{template} renders {}", c["messages"]));
        }
        let plain = ids_of(&c["ids"]).unwrap();
        let meant = ids_of(&c["special"]).unwrap_or_else(|| plain.clone());
        for (special, want) in [(false, plain), (true, meant)] {
            let got = ids(c, special);
            if got != want {
                bad.push(format!("{template}, special {special}: {}", c["messages"]));
            }
            if !special && got.iter().filter(|id| **id == 2).count() != 1 {
                bad.push(format!("{template}: bos is not there once: {}", c["messages"]));
            }
        }
    }
    assert_eq!(seen, 50);
    bad
}

fn wrong_chats(template: &str, text: &Text) -> Vec<String> {
    let ids = |c: &Value, special: bool| text.chat_prompt(&messages_of(c), c["thinking"].as_bool().unwrap(), special).unwrap();
    wrong_prompts(template, |m, thinking| text.render(m, thinking).unwrap(), ids)
}

#[test]
fn fifty_conversations_with_three_templates() {
    assert_eq!(wrong_chats("own", &model(&[])), [""; 0]);
    assert_eq!(wrong_chats("closed", &with_template("closed")), [""; 0]);
    assert_eq!(wrong_chats("open", &with_template("open")), [""; 0]);
}

#[test]
fn faults_in_prompts_are_caught() {
    let text = with_template("closed");
    let good = |c: &Value, special: bool| text.chat_prompt(&messages_of(c), c["thinking"].as_bool().unwrap(), special).unwrap();
    let render = |m: &[Message], thinking: bool| text.render(m, thinking).unwrap();
    let wrong = |ids: &dyn Fn(&Value, bool) -> Vec<u32>| wrong_prompts("closed", render, ids).len();
    assert_eq!(wrong(&good), 0);
    // bos left out, and bos twice.
    assert_eq!(wrong(&|c, special| good(c, special)[1..].to_vec()), 150);
    assert_eq!(wrong(&|c, special| [&[2], &good(c, special)[..]].concat()), 150);
    // A template that writes no bos is mended; one of another size is seen.
    let source = fs::read_to_string(format!("{DATA}/closed.jinja")).unwrap();
    let without = model(&[("chat_template.jinja", source.replace("{{- bos_token -}}\n", ""))]);
    let mended =
        |c: &Value, special: bool| without.chat_prompt(&messages_of(c), c["thinking"].as_bool().unwrap(), special).unwrap();
    assert_eq!(wrong(&mended), 0);
    assert_ne!(wrong_chats("closed", &with_template("open")), [""; 0]);
    assert_ne!(wrong_chats("open", &text), [""; 0]);
    // Spelled control tokens that act.
    assert!(wrong(&|c, _| good(c, true)) > 20);
}

/// Thinking is closed by default, as the template of each size has it.
#[test]
fn generation_prompts_of_the_sizes() {
    let hello = [Message::new(Role::User, "Hello")];
    let turn = "<bos><|turn>user\nHello<turn|>\n<|turn>model\n";
    let think = "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nHello<turn|>\n<|turn>model\n";
    for (name, off) in [("closed", format!("{turn}<|channel>thought\n<channel|>")), ("open", turn.to_string())] {
        let text = with_template(name);
        assert_eq!(text.render(&hello, false).unwrap(), off);
        assert_eq!(text.render(&hello, true).unwrap(), think);
        assert_eq!(text.chat_prompt(&hello, true, false).unwrap(), text.encode(think, true).unwrap());
    }
}

#[test]
fn what_a_template_does_not_know_is_refused() {
    let source =
        "{{ bos_token }}{% for m in messages if m.role not in ['system', 'developer'] %}{{ m.content | trim }}\n{% endfor %}";
    let text = model(&[("chat_template.jinja", source.into())]);
    let user = Message::new(Role::User, "Hello");
    let fails = |messages: &[Message], thinking: bool| text.chat_prompt(messages, thinking, false).unwrap_err();
    assert!(text.chat_prompt(std::slice::from_ref(&user), false, false).is_ok());
    assert_eq!(fails(std::slice::from_ref(&user), true).code, "E0248");
    for role in [Role::System, Role::Developer] {
        assert_eq!(fails(&[Message::new(role, "Be brief."), user.clone()], false).code, "E0249");
        assert!(text.chat_prompt(&[Message::new(role, " \n"), user.clone()], false, false).is_ok());
    }
    // The same messages are heard by the templates of the models, and a template may refuse in its own words.
    for name in ["closed", "open"] {
        assert!(
            with_template(name).chat_prompt(&[Message::new(Role::Developer, "Be brief."), user.clone()], true, false).is_ok()
        );
    }
    let strict = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}x";
    let text = model(&[("chat_template.jinja", strict.into())]);
    let d = text.chat_prompt(&[Message::new(Role::System, "Be brief."), user], false, false).unwrap_err();
    assert!(d.code == "E0254" && d.message.contains("System role not supported"), "{d}");
}

/// One word can be as long as the text. A merge loop that takes the square of a million steps would not end.
#[test]
fn words_of_a_megabyte() {
    let text = model(&[]);
    for (unit, special) in [("the", false), (" ", false), ("<|turn", true), ("<bos>", true), ("<bos>", false), ("🍵", false)] {
        let long = unit.repeat((1 << 20) / unit.len());
        let ids = text.encode(&long, special).unwrap();
        assert_eq!(text.decode(&ids, false), long, "{unit:?}");
    }
    let d = text.encode(&"a".repeat((16 << 20) + 1), false).unwrap_err();
    assert!(d.code == "E0244" && d.message.contains("16777217 bytes"), "{d}");
}
