"""Secrets in texts of a profile are masked; names that only look alike stay as they are."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceviz_dag.read.secrets import masked, masked_column, masked_words

LETTERS = "aB3" * 8
TOKENS = (
    *(f"gsk_{LETTERS}", f"r8_{LETTERS}", f"wandb_v1_{LETTERS}", f"hvs.{LETTERS}", f"xai-{LETTERS}", f"pplx-{LETTERS}"),
    *(f"dop_v1_{'a1' * 32}", f"dapi{'a1' * 16}", f"glrt-{LETTERS}", f"rk_live_{LETTERS}", f"xapp-1-{LETTERS}"),
    *(f"tskey-auth-{LETTERS}", f"123456789:AA{'b_' * 16}c", f"bot1234567890:AA{'b_' * 16}c"),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("load hf_SECRETNVTXabcdef", "load ***"),
        ("export HF_TOKEN=hf_abcdefghijklm && run", "export HF_TOKEN=*** && run"),
        ("push ghp_0123456789abcdefghij", "push ***"),
        ("sk-ant-api03-abcdefghijklmnop", "***"),
        ("AKIAIOSFODNN7EXAMPLE", "***"),
        ("WANDB_API_KEY=0123456789abcdef0123", "WANDB_API_KEY=***"),
        ('{"password": "correct horse"}', '{"password": "***"}'),
        ("password=hunter2secret", "password=***"),
        ("Authorization: Bearer abcdef.ghijkl", "Authorization: Bearer ***"),
        ("https://alice:pa55word@git.example/x.git", "https://***@git.example/x.git"),
        ("s3 https://token123@bucket/x", "s3 https://***@bucket/x"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc", "***"),
        ("/home/alice/Megatron-LM/megatron/core/x.py(12): f", "~/Megatron-LM/megatron/core/x.py(12): f"),
        ("/lustre/users/alice/run.py(3): main", "~/run.py(3): main"),
        ("/root/.cache/torch/x.py", "~/.cache/torch/x.py"),
        (r"C:\Users\alice\run.py", r"~\run.py"),
        ("open /home/alice", "open ~"),
        ("aws_secret_access_key = abcdEFGH/1234", "aws_secret_access_key = ***"),
        ("train.py --hf-token abcDEF123 --lr 1", "train.py --hf-token *** --lr 1"),
        ("--password hunter2 run", "--password *** run"),
        ("Bearer abcdefghijklmnopqrst", "Bearer ***"),
        ("password=12345678", "password=***"),
        ("PGPASSWORD=x1y DB_PASS=z", "PGPASSWORD=*** DB_PASS=***"),
        (r"{\"password\": \"correct horse\"}", r"{\"password\": \"***\"}"),
        (r'TOKEN="abc\"def"', 'TOKEN="***"'),
        ("https://alice:p@ss@git.example/x", "https://***@git.example/x"),
        ("https://blob/x?sv=1&sig=ab%3D&se=2", "https://blob/x?sv=1&sig=***&se=2"),
        ("s3/x?X-Amz-Signature=0123abcd", "s3/x?X-Amz-Signature=***"),
        ("allreducehf_" + "aB3" * 11, "allreduce***"),
        ("/export/home2/alice/x.py(3): f", "~/x.py(3): f"),
        (r"C:\\Users\\alice\\run.py", r"~\\run.py"),
        ("https://alice:pa/ss@git.example/x", "https://***@git.example/x"),
        ("curl -u alice:secret http://x", "curl -u *** http://x"),
        ("HF_TOKEN=abc run", "HF_TOKEN=*** run"),
        ("to alice@cluster.example.com.", "to ***."),
        ("mail alice.b@example.com now", "mail *** now"),
        ("rsync alice@node-17:/data/x", "rsync ***:/data/x"),
        ("ssh alice@10.0.0.3", "ssh ***"),
        ("/u/alice/run.py(3): main", "~/run.py(3): main"),
        *((f"with {token} beside", "with *** beside") for token in TOKENS),
        ("https://hooks.slack.com/services/T0/B0/abcd", "https://hooks.slack.com/services/***"),
        ("signed X-Amz-Signature=0123abcd", "signed X-Amz-Signature=***"),
        ("Authorization: Token abcdefgh", "Authorization: Token ***"),
        ("sshpass -p hunter2 ssh -p 22 node", "sshpass -p *** ssh -p 22 node"),
        ("mysql -uroot -P 3306 -phunter2 db", "mysql -uroot -P 3306 -p*** db"),
        ("7z x -p'hun ter' a.7z; unzip -P hunter2 x.zip", "7z x -p*** a.7z; unzip -P *** x.zip"),
        ("docker login -u me -p hunter2 registry", "docker login -u me -p *** registry"),
        ("openssl rsa -passin pass:hunter2 -in k", "openssl rsa -passin pass:*** -in k"),
        ("curl -H 'Cookie: id=abc; csrf=\"d\"; Secure' x", "curl -H 'Cookie: ***; Secure' x"),
        ('{"Set-Cookie": "sid=31d4; Path=/"}', '{"Set-Cookie": "***"}'),
        ("curl -b sid=abc http://x", "curl -b *** http://x"),
        ("JSESSIONID=0AB1C2D3", "JSESSIONID=***"),
        ("machine h login alice password hunter2", "machine h login *** password ***"),
        ("login alice\n  account a\n  password x", "login ***\n  account a\n  password ***"),
        # As programs write them that print settings, command lines and requests.
        (r"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nab\n-----END RSA PRIVATE KEY----- x", "*** x"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nab\n-----END PGP PRIVATE KEY BLOCK-----", "***"),
        ("export API_KEY='ab cd ef'", "export API_KEY='***'"),
        ("--password 'hunter 2' --token=x", "--password *** --token=***"),
        ("--password \\\n hunter2", "--password \\\n ***"),
        ("['--password', 'hun ter2']", "['--password', '***']"),
        ('("password", "hunter2")', '("password", "***")'),
        ("os.environ['HF_TOKEN'] = 'abcdef'", "os.environ['HF_TOKEN'] = '***'"),
        ("setenv HF_TOKEN abcdef", "setenv HF_TOKEN ***"),
        ("password => hunter2; secret := abcdefg", "password => ***; secret := ***"),
        ("password: >-\n  hunter2", "password: >-\n  ***"),
        ("Basic YWxpY2U6aHVudGVyMg==", "Basic ***"),
        ("Bearer abc123def", "Bearer ***"),
        ("wandb login 0123456789abcdef0123456789abcdef01234567", "wandb login ***"),
        ("password%3Dhunter2", "password=***"),
        ("open %2Fhome%2Falice%2Fx.py", "open ~/x.py"),
        ("next=https%253A%252F%252Falice%253Apa55%2540word%2540h%252Fx", "next=https://***@h/x"),
        (r'{"pass\u0077ord": "hunter2"}', '{"password": "***"}'),
        ("ssh -p 22 alice@node17 hostname", "ssh -p 22 *** hostname"),
        ("ssh -l alice node17", "ssh -l *** node17"),
        ("[alice@dgx-01 ~]$ python", "[*** ~]$ python"),
        ("USER=alice SLURM_JOB_USER=alice", "USER=*** SLURM_JOB_USER=***"),
        (r"\\server\Users\Alice\x.py", r"~\x.py"),
        (r"C:\Users\Alice Smith\x.py", r"~\x.py"),
        ("/Users/Alice Smith/x.py", "~/x.py"),
        ("/afs/cern.ch/user/a/alice/x.py", "~/x.py"),
    ],
)
def test_a_secret_is_masked(text, expected):
    assert masked(text) == expected
    assert masked_words(["aten::mm", text, ""]) == ("aten::mm", expected, "")
    assert masked_column(pa.array(["aten::mm", None, text])).to_pylist() == ["aten::mm", None, expected]
    assert masked_column(pa.array([text, None, text]).dictionary_encode()).to_pylist() == [expected, None, expected]


@pytest.mark.parametrize(
    "text",
    [
        "megatron/core/transformer/moe/token_dispatcher.py(402): token_permutation",
        "num_tokens: 4096",
        "tiktoken==0.9.0",
        "hf_transfer.py(3): hf_to_megatron",
        "void token::dispatch_kernel<int>(token->position)",
        "Basic TransformerBlock",
        "ops: %2d of %20s, 100%25",
        "add_special('token', 'position')",
        "sshfs_cache_build",
        "key-frame, secret_sauce",
        "token: 4096",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, float)",
        "cudaGraphLaunch",
        "nn.Module: VocabParallelEmbedding_0",
        "nccl:all_reduce",
        "task-parallel-0123456789abcdef",
        "key_value_memory",
        "flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>",
        "torch/utils/checkpoint.py(10): forward",
        "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/module.py(1): _call_impl",
        "rooted/trees.py",
        "tokens_per_expert[5]",
        "monkey: banana",
        "pwd=/workspace/job",
        "forward_pass: 12",
        "--tokenizer-type GPT2BPETokenizer",
        "/mnt/root/x.py(3): f",
        "signature: (Tensor, Tensor)",
        "git+https://git.example/org/repo@v1.0",
        "http://node:8080/repo@v1",
        "fwd@layer.mlp",
        "memcpy@@GLIBC_2.14",
        "kernel@plt",
        "TILE_KEY=4",
        "sleep -u 3",
        "/ui/page.py(3): main",
        "mkdir -p /data/x",
        "srun -p gpu mysqlclient.py",
        "mysql -p -h node",
        "docker run -p 8080:80 image",
        "cookie: none",
        "session_id=12345678",
        "login page, password reset",
        "zip(strict=True) -P",
    ],
)
def test_a_name_that_only_looks_alike_stays(text):
    assert masked(text) == text


@given(st.lists(st.text()))
def test_masking_twice_changes_nothing_more_and_many_at_once_are_as_one_by_one(words):
    once = masked_words(words)
    assert once == tuple(masked(word) for word in words)
    assert masked_words(once) == once


# What secrets and their surroundings are made of, put together in any order.
_PIECES = st.one_of(
    st.sampled_from(["hf_", "ghp_", "sk-", "AKIA", "SG.", "eyJ", "a" * 20, "1" * 8, "-----BEGIN PRIVATE KEY-----"]),
    st.sampled_from(["password=", "_PASS=", "SECRET=", "X_TOKEN=", "token:", "bearer", "basic", "--token", "?sig="]),
    st.sampled_from(["https://", "a@", "@", "u@h.com", ".com", "--user=", "-u", "***"]),
    st.sampled_from(["/home/", "/home/u", "/u/", "/root", "//", "~", "C:\\", "Users\\"]),
    st.sampled_from("\"'\\=:/*.ſKé \n\v\x1c\x85\u2028"),
    st.sampled_from(["sshpass -p", "mysql ", " -p", "unzip x -P ", "curl -b", "Cookie: ", "a=", "; b=", "session_id="]),
    st.sampled_from(
        ["%3D", "%253A", "\\u003d", "%20", "%2Fhome%2Fu", "Basic ", "YTpiY2Rl", "ssh ", "-l ", "u@h", "[u@h ~]$ "]
    ),
    st.sampled_from(
        [
            "'--token', ",
            "'password', '",
            "setenv A_KEY ",
            "USER=u",
            "\\\\h\\Users\\",
            "=>",
            ":=",
            "'] = ",
            "wandb login ",
        ]
    ),
    st.sampled_from(["login ", "x ", "account ", "password ", "openssl x -passin pass:", "'", '"']),
    st.text(max_size=5),
)
_TEXTS = st.lists(_PIECES, max_size=9).map("".join)


@settings(max_examples=500)
@given(_TEXTS)
def test_the_quick_look_misses_no_secret_and_nothing_is_left_to_mask(text):
    once = masked(text)
    assert masked_words([text])[0] == once
    assert masked(once) == once
