#!/usr/bin/env python3
"""Makes the files beside this script: small tokenizers and the ids that the reference library gives.

python3 -m venv v && v/bin/pip install tokenizers==0.23.3 sentencepiece protobuf && v/bin/python make.py
"""
import base64
import json
import os
import tempfile

import sentencepiece
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind.",
    "Naïve café déjà vu; Straße, Ελλάδα, Привет мир, 東京タワー and 한국어 text.",
    "def main(argv):\n    for i in range(1000):\n        print(i, 'hello world')\n",
    "In 2024 the price rose from $1,234.56 to $9,876.54 (about 800%).",
    "She said: \"We're going; they'll follow, I'm sure.\" Isn't it?",
] * 20
TEXTS = [
    "", " ", "  ", "\n", "\t\n ", "hello", " hello", "hello world", "Hello  World!   ",
    "I'll don't WE'RE they'd", "x=1234567.890e-12;", "naïve café e\u0301 É ß İ ǅ ﬁ",
    "東京タワー 한국어 Привет Ελλάδα", "🙂👍🏽 👨‍👩‍👧", "a\u00a0b\u3000c\u200bd\ufeffe", "½ ² ① ٣",
    "tab\tand\r\nnewline\n\n\nend", "<s> not special </s>", "<special> x <special>y", "foo<mask>  bar",
    "wordUSERword USER word", "don’t “quote” — dash…", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "unaffable antidisestablishmentarianism", "\u0000\u0001x\u007f", "▁▁ already ▁here",
    "trailing space ", "UPPER lower MiXeD 123abc456", "(a)[b]{c}<d>", "한글 각 각",
]


def save(name, tok):
    cases = [{"text": t, "ids": tok.encode(t, add_special_tokens=False).ids,
              "special_ids": tok.encode(t).ids} for t in TEXTS]
    out = {"tokenizer": json.loads(tok.to_str()), "cases": cases}
    with open(os.path.join(HERE, name + ".json"), "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


def byte_level():
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
                                   r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tok.add_tokens([AddedToken("USER", single_word=True, normalized=False)])
    tok.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True)])
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                      special_tokens=[("<s>", tok.token_to_id("<s>"))])])
    save("byte-level", tok)


def steps_after_bytes():
    """Falcon's order: splits that see the byte-level spelling."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=380, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tok.add_tokens([AddedToken("<special>")])
    save("falcon-order", tok)


def llama_like():
    alphabet = [f"<0x{b:02X}>" for b in range(256)]
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tok.train_from_iterator(CORPUS[:3] * 20, trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "<s>", "</s>"] + alphabet, show_progress=False))
    data = json.loads(tok.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    data["model"].update(fuse_unk=True, byte_fallback=True)
    data["pre_tokenizer"] = None
    tok = Tokenizer.from_str(json.dumps(data))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                     decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    save("llama-like", tok)
    tok.normalizer = None
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tok.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    tok.add_special_tokens([AddedToken("<special>", normalized=False)])
    save("metaspace-first", tok)


def unigram():
    with tempfile.TemporaryDirectory() as tmp:
        rules = os.path.join(tmp, "rules.tsv")
        with open(rules, "w") as f:  # ligature, accent, Tokyo's first character, full-width space
            f.write("FB01\t66 69\nE9\t65\n65 301\t65\n6771\t54 6F 20\n3000\t20\n200B\t20\nFEFF\t\n")
        text = os.path.join(tmp, "corpus.txt")
        with open(text, "w") as f:
            f.write("\n".join(CORPUS))
        sentencepiece.SentencePieceTrainer.train(
            input=text, model_prefix=os.path.join(tmp, "m"), vocab_size=105,
            normalization_rule_tsv=rules, minloglevel=2)
        from sentencepiece import sentencepiece_model_pb2 as pb
        proto = pb.ModelProto()
        with open(os.path.join(tmp, "m.model"), "rb") as f:
            proto.ParseFromString(f.read())
        charsmap = proto.normalizer_spec.precompiled_charsmap
        vocab = [(p.piece, p.score) for p in proto.pieces]
    for fallback in (False, True):
        extra = [(f"<0x{b:02X}>", 0.0) for b in range(256)] if fallback else []
        tok = Tokenizer(models.Unigram(vocab + extra, 0, fallback))
        tok.normalizer = normalizers.Sequence([
            normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")])
        tok.pre_tokenizer = pre_tokenizers.Metaspace()
        tok.decoder = decoders.Metaspace()
        tok.add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True)])
        tok.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
        save("unigram-bytes" if fallback else "unigram", tok)


def word_piece():
    for name, lower in (("bert", True), ("bert-cased", False)):
        tok = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30))
        tok.normalizer = normalizers.BertNormalizer(lowercase=lower)
        tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tok.decoder = decoders.WordPiece()
        tok.train_from_iterator(CORPUS, trainers.WordPieceTrainer(
            vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
            show_progress=False))
        tok.add_tokens([AddedToken("USER", normalized=True), AddedToken("<special>", normalized=True)])
        tok.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        save(name, tok)


def other_steps():
    vocab = {w: i for i, w in enumerate(
        ["[UNK]", "hello", "world", "HELLO", "Hello", "WORLD", "World", "!", "x", "=", "1234567",
         "a", "b", "c", "d", "the", "<", ">", "s", "not", "special", "naive", "cafe", "USER", "word"])}
    tok = Tokenizer(models.WordLevel(vocab, "[UNK]"))
    tok.normalizer = normalizers.Sequence([
        normalizers.NFKD(), normalizers.StripAccents(), normalizers.Strip(), normalizers.Lowercase()])
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    save("word-level", tok)
    tok.normalizer = normalizers.NFKC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Punctuation("merged_with_previous"),
        pre_tokenizers.Split("o", "merged_with_next"), pre_tokenizers.Split(Regex("[aeiu]"), "removed"),
        pre_tokenizers.CharDelimiterSplit("l"), pre_tokenizers.FixedLength(3)])
    pieces = sorted({p for t in TEXTS for p, _ in
                     tok.pre_tokenizer.pre_tokenize_str(tok.normalizer.normalize_str(t))})
    tok.model = models.WordLevel({w: i for i, w in enumerate(["[UNK]"] + pieces)}, "[UNK]")
    save("every-split", tok)
    tok = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tok.normalizer = normalizers.Lowercase()
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    tok.decoder = decoders.BPEDecoder("</w>")
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False))
    save("word-suffix", tok)
    tok = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>"], continuing_subword_prefix="##",
        show_progress=False))
    save("continuing-prefix", tok)


if __name__ == "__main__":
    byte_level()
    steps_after_bytes()
    llama_like()
    unigram()
    word_piece()
    other_steps()
