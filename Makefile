# The two commands of the README are `make demo` and `make test`.
CARGO ?= cargo
ISOBIT = target/release/isobit

.PHONY: demo test test-full test-gpu ptx-check aarch64-check bench setup assembler aarch64 build lint

demo: build
	$(ISOBIT) run "Write a paragraph about the history of coffee."

build: setup
	$(CARGO) build --release

# Every check. Needs no GPU.
test: lint assembler aarch64
	$(CARGO) test --release --workspace
	tests/aarch64.sh

# Every combination where `make test` takes a covering set.
test-full: lint assembler aarch64
	$(CARGO) test --release --workspace --features isobit/full-tests,isobit-fuzz/full-tests
	tests/aarch64.sh
	$(CARGO) build --release
	tests/html/check.sh

# Every check that needs an NVIDIA GPU; on a machine without Rust or LLVM, of what tests/gpu/pack.sh made elsewhere.
test-gpu:
	tests/gpu/test.sh

# Every kernel of the demo model through NVIDIA's assembler, and its instruction counts.
ptx-check: setup assembler
	$(CARGO) test --release --test ptx_check -- --nocapture

# Code for aarch64 under an emulator of that processor: kernels against their meaning, the demo model against this machine.
aarch64-check: aarch64
	$(CARGO) test --release -p isobit-codegen
	$(CARGO) test --release --test aarch64
	tests/aarch64.sh

bench: setup
	$(CARGO) bench

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	$(CARGO) clippy --release -p isobit-gpu-check --no-default-features --features cuda --all-targets -- -D warnings

setup:
	@tools/setup.sh

assembler: setup
	@tools/assembler.sh

aarch64: setup
	@tools/aarch64.sh
