#!/bin/sh
# The page of `isobit dump --format html` in a browser: search, fold, select, differences. Needs target/release/isobit and
# Chromium; without Chromium it says so and ends well. `tests/page.rs` checks the rest without a browser.
#   tests/html/check.sh [FOLDER FOR SCREENSHOTS]
set -eu
cd "$(dirname "$0")/../.."
for name in chromium chromium-browser google-chrome; do
    browser=$(command -v $name) && break
done
if [ -z "${browser:-}" ]; then
    echo "NOT RUN: there is no Chromium on this machine, so the page of \`isobit dump\` was not opened" >&2
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
isobit=target/release/isobit
"$isobit" dump demo --format html -o "$work/one.html"
# Another order, another fusion: a value that computes otherwise, values that run otherwise.
"$isobit" dump demo --disable-rule norm-into-quantize \
    | sed '/"layers.0.attn.norm"/s/lanes=256/lanes=128/' >"$work/other.graph"
"$isobit" dump demo --format html --with "$work/other.graph" -o "$work/two.html"
"$isobit" dump tests/fixtures/configs/26b-a4b-mlx-4bit --weights random:1 --target sm_90 --format html -o "$work/26b.html"

browse() {
    "$browser" --headless --no-sandbox --disable-gpu --virtual-time-budget=5000 --window-size=1400,900 "$@" 2>/dev/null
}
bad=0
# page, state, what the document must hold (a fixed string), or with `!` in front must not
expect() {
    browse --dump-dom "file://$work/$1#$2" | sed 's/<script.*//' >"$work/dom"
    shift 2
    for want; do
        case $want in
        !*) if grep -qF -- "${want#!}" "$work/dom"; then echo "FAILED: found ${want#!}" >&2; bad=1; fi ;;
        *) if ! grep -qF -- "$want" "$work/dom"; then echo "FAILED: no $want" >&2; bad=1; fi ;;
        esac
    done
}
# Folded but for the first layer; weights are hidden.
expect one.html '' 'data-name="layers.0.attn.q"' '!data-name="layers.1.attn.q"' '!data-name="embed_tokens"' 'Select a value'
expect one.html 'open=layers.3' 'data-name="layers.3.attn.q"' '!data-name="layers.0.attn.q"'
expect one.html 'open=all&weights=1' 'data-name="layers.7.moe.sum"' 'data-name="embed_tokens"'
# A selected value, its producers and consumers, its order, its kernel.
expect one.html 'sel=layers.5.moe.router_logits' '<h2>layers.5.moe.router_logits' 'data-to="layers.5.moe.router_in.q24"' \
    'data-to="layers.5.moe.route"' 'data-field="order">sum(lanes=4, take=contiguous, tree=pair)' 'kernel k_mlp_act__moe_route'
expect one.html 'sel=nonsense' 'Select a value'
# Search by name and operation, over all layers, and for nothing.
expect one.html 'q=moe.act+gelu' 'data-name="layers.7.moe.act"' '!data-name="layers.7.mlp.act"' '8 found'
expect one.html 'q=nosuchvalue' 'Nothing found.'
# Differences: one value computes otherwise.
expect two.html 'diff=1' 'class="bits" data-name="layers.0.attn.norm"' '1 compute otherwise' '128 strided, pair' \
    '!class="bits" data-name="layers.1.attn.norm"'
expect two.html 'sel=layers.0.attn.norm' 'other order' 'lanes=256' 'lanes=128'
expect 26b.html 'sel=layers.29.moe.sum' '<h2>layers.29.moe.sum' 'data-group="layers.29"'
if [ $# -gt 0 ]; then
    mkdir -p "$1"
    browse --screenshot="$1/one.png" "file://$work/one.html#sel=layers.0.moe.route"
    browse --screenshot="$1/two.png" "file://$work/two.html#sel=layers.0.attn.norm"
    browse --screenshot="$1/26b.png" "file://$work/26b.html#sel=layers.29.moe.sum"
    echo "screenshots are in $1"
fi
[ $bad = 0 ] && echo "the page does what it should"
exit $bad
