//! Tokenizers and chat templates that are broken, or belong to another model.

use super::Case;
use super::model::damaged;
use serde_json::{Value, json};

const TOKENIZER: &str = "tokenizer.json";
const TEMPLATE: &str = "chat_template.jinja";
const CHAT: &str = "run model --no-cache --target x86-64-v3 --threads 1 -n 2 Hello";

/// All cases.
pub fn cases() -> Vec<Case> {
    let tokenizer = |name: &str, change: fn(&mut Value)| damaged(name, move |m| m.json(TOKENIZER, change));
    let template = |name: &str, text: String| damaged(name, move |m| m.put(TEMPLATE, &text)).run(CHAT);
    let other = |name: &str, file: &'static str, text: &'static str| damaged(name, move |m| m.put(file, text)).run(CHAT);
    let deep = |open: &str, close: &str| format!("{{{{ {}1{} }}}}", open.repeat(10_000), close.repeat(10_000));
    vec![
        damaged("no-tokenizer", |m| m.remove(TOKENIZER)).run(CHAT),
        damaged("no-tokenizer-for-a-conversation", |m| m.remove(TOKENIZER)).run(CHAT.trim_end_matches(" Hello")),
        other("tokenizer-empty", TOKENIZER, ""),
        other("tokenizer-no-json", TOKENIZER, "{\"model\": {"),
        other("tokenizer-a-list", TOKENIZER, "[]"),
        damaged("tokenizer-cut", |m| m.own(TOKENIZER).set_len(100_000).unwrap()),
        damaged("tokenizer-not-utf8", |m| m.put(TOKENIZER, b"{\"model\": \"\xff\"}")),
        damaged("tokenizer-nested", |m| m.put(TOKENIZER, format!("{{\"decoder\":{}", "[".repeat(10_000)))),
        damaged("tokenizer-nested-where-nobody-looks", |m| m.put(TOKENIZER, format!("{{\"x\":{}", "[".repeat(100_000)))),
        tokenizer("tokenizer-of-words", |t| t["model"]["type"] = json!("WordPiece")),
        tokenizer("tokenizer-random", |t| t["model"]["dropout"] = json!(0.1)),
        tokenizer("tokenizer-with-another-decoder", |t| t["decoder"] = json!({"type": "ByteLevel"})),
        tokenizer("tokenizer-of-a-larger-vocabulary", |t| t["model"]["vocab"]["larger"] = json!(4096)),
        tokenizer("tokenizer-with-an-absurd-id", |t| t["model"]["vocab"]["absurd"] = json!(4_294_967_295u32)),
        tokenizer("tokenizer-with-a-negative-id", |t| t["model"]["vocab"]["negative"] = json!(-1)),
        tokenizer("tokenizer-with-an-id-twice", |t| t["model"]["vocab"]["twice"] = json!(1000)),
        tokenizer("tokenizer-without-bos", |t| {
            t["model"]["vocab"].as_object_mut().unwrap().remove("<bos>");
            t["added_tokens"].as_array_mut().unwrap().retain(|a| a["content"] != "<bos>");
        }),
        tokenizer("tokenizer-with-an-empty-token", |t| t["added_tokens"][0]["content"] = json!("")),
        tokenizer("tokenizer-with-a-special-token-moved", |t| t["added_tokens"][0]["id"] = json!(5)),
        tokenizer("tokenizer-with-a-foreign-merge", |t| {
            t["model"]["merges"].as_array_mut().unwrap().push(json!(["nobody", "knows"]));
        }),
        tokenizer("tokenizer-without-merges", |t| {
            t["model"].as_object_mut().unwrap().remove("merges");
        }),
        tokenizer("tokenizer-without-vocabulary", |t| {
            t["model"].as_object_mut().unwrap().remove("vocab");
        }),
        other("settings-no-json", "tokenizer_config.json", "{"),
        other("settings-a-number", "tokenizer_config.json", "7"),
        other("settings-with-another-bos", "tokenizer_config.json", "{\"bos_token\": \"<s>\"}"),
        other("generation-no-json", "generation_config.json", "nothing"),
        other("generation-ends-with-no-token", "generation_config.json", "{\"eos_token_id\": 4096}"),
        damaged("no-template", |m| {
            m.remove(TEMPLATE);
            m.put("tokenizer_config.json", "{}");
        })
        .run(CHAT),
        damaged("template-a-number", |m| {
            m.remove(TEMPLATE);
            m.put("tokenizer_config.json", "{\"chat_template\": 7}");
        })
        .run(CHAT),
        damaged("template-not-utf8", |m| m.put(TEMPLATE, b"{{ \xff }}")).run(CHAT),
        template("template-syntax", "{% if %}".into()),
        template("template-open", "{{ messages".into()),
        template("template-open-loop", "{% for m in messages %}".into()),
        template("template-large", " ".repeat(129 << 10)),
        template("template-raises", "{{ raise_exception('roles must alternate') }}".into()),
        template("template-of-an-unknown-filter", "{{ messages | unheard_of }}".into()),
        template("template-of-an-unknown-method", "{{ messages.unheard_of() }}".into()),
        template("template-of-no-number", "{{ 1 + messages }}".into()),
        template("template-divides-by-zero", "{{ 1 // 0 }}".into()),
        template(
            "template-endless-loop",
            "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}".into(),
        ),
        template("template-long-range", "{% for a in range(9000000000) %}{% endfor %}".into()),
        template("template-endless-macro", "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}".into()),
        template(
            "template-endless-output",
            format!("{{% for a in range(90000) %}}{{% for b in range(90000) %}}{}{{% endfor %}}{{% endfor %}}", "x".repeat(1000)),
        ),
        template("template-nested-parentheses", deep("(", ")")),
        template("template-nested-lists", deep("[", "]")),
        template("template-nested-ifs", "{% if 1 %}".repeat(10_000)),
        template("template-includes-a-file", "{% include 'config.json' %}".into()),
    ]
}
