# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What engines and drivers really print, and what the table makes of it; nothing secret comes through."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._log_messages import (
    HIDDEN,
    check_messages,
    collect_messages,
    last_words,
    mask,
    tail,
    translate,
)

ROLES = Path(__file__).resolve().parents[4] / "roles"

#: Message -> a line as it is printed, and words that its meaning must have.
LINES = {
    "weights_truncated": (
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
        ["cut off or damaged (MetadataIncompleteBuffer)", "weights_deep=true"],
    ),
    "weights_scales_missing": (
        "WARNING 11-30 15:00:00 [qwen3_5.py:311] Parameter layers.0.linear_attn.in_proj_qkvz.weight_scale not found in params_dict, skip loading",
        ["layers.0.linear_attn.in_proj_qkvz.weight_scale", "garbage", "quantization_config"],
    ),
    "weights_quantization_crash": (
        "(EngineCore pid=91) AttributeError: 'MergedColumnParallelLinear' object has no attribute 'data'",
        ["MergedColumnParallelLinear", "quantization_config"],
    ),
    "weights_fused_disagree": (
        "ValueError: Found a different quantization schemes for ['q_proj', 'k_proj', 'v_proj'] in model.layers.3.self_attn.qkv_proj. vLLM requires all",
        ["q_proj", "model.layers.3.self_attn.qkv_proj", "all of them or none"],
    ),
    "weights_scheme_unknown": (
        "ValueError: Unable to find matching target for model.layers.0.mlp.experts in the compressed-tensors config.",
        ["says nothing of model.layers.0.mlp.experts"],
    ),
    "ascend_quantizer": ("NotImplementedError: There is no available ascend quantizer.", ["quant_model_description.json"]),
    "quantization_mismatch": (
        "pydantic_core._pydantic_core.ValidationError: Value error, Quantization method specified in the model config (fp8) does not match the "
        "quantization method specified in the `quantization` argument (compressed-tensors).",
        ["the weights are fp8", "says compressed-tensors"],
    ),
    "unsupported_architecture": (
        "Value error, Model architectures ['Qwen3_5MoeForConditionalGeneration'] are not supported for now. Supported architectures: dict_keys([...])",
        ["Qwen3_5MoeForConditionalGeneration", "newer image"],
    ),
    "context_too_long": (
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (7344). Try increasing",
        ["a context of 32768 tokens; the longest allowed is 7344", "{max_model_len: 7344}"],
    ),
    "context_estimated": (
        "ValueError: To serve at least one request with the models's max seq len (262144), (5.02 GiB KV cache is needed, which is larger than the "
        "available KV cache memory (3.20 GiB). Based on the available memory, the estimated maximum model length is 161568.",
        ["the longest that fits is 161568 tokens", "plan.yml"],
    ),
    "no_cache_blocks": (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        ["no memory for the KV cache"],
    ),
    "less_free_than_asked": (
        "ValueError: Free memory on device cuda:0 (42.10/79.65 GiB) on startup is less than desired GPU memory utilization (0.9, 71.68 GiB).",
        ["42.10 of 79.65 GiB", "who holds the card"],
    ),
    "memory_profile": (
        "AssertionError: Error in memory profiling. Initial free memory 82.94 GiB, current free memory 90.17 GiB. This happens when other processes",
        ["82.94 GiB free, then 90.17", "start again"],
    ),
    "npu_out_of_memory": (
        "RuntimeError: NPU out of memory. Tried to allocate 88.00 MiB (NPU 0; 60.96 GiB total capacity; 4.24 GiB already allocated; 4.24 GiB current "
        "active; 7.47 MiB free; 4.30 GiB reserved in total by PyTorch)",
        ["no 88.00 MiB free on the NPU (of 60.96 GiB, this engine has 4.24 GiB)", "expandable_segments"],
    ),
    "cuda_out_of_memory": (
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 63.98 GiB of which 1.10 GiB is free.",
        ["no 2.00 GiB free"],
    ),
    "npu_allocator_pair": (
        "RuntimeError: `max_split_size_mb` or `garbage_collection_threshold`, cannot be enabled together with expandable_segments=True",
        ["exclude each other", "{PYTORCH_NPU_ALLOC_CONF: 'expandable_segments:True'}"],
    ),
    "shared_memory": (
        "RuntimeError: shared memory: request is for 10200547328 bytes, and the amount available is 9663676416",
        ["wanted 10200547328 bytes, 9663676416 available", "shm_mib"],
    ),
    "block_longer_than_step": (
        "AssertionError: In Mamba cache align mode, block_size (1056) must be <= max_num_batched_tokens (1024).",
        ["(1056 tokens)", "(1024)", "{max_num_batched_tokens: 1056}"],
    ),
    "unknown_argument": (
        "vllm: error: unrecognized arguments: --swap-space 4",
        ["does not know --swap-space 4", "null in llm_settings"],
    ),
    "speculative_key": ("pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig", ["threshold"]),
    "tool_parser_needed": (
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        ["without a parser", "qwen3_coder"],
    ),
    "chat_template": (
        "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the tokenizer does not define one.",
        ["no chat template"],
    ),
    "trust_remote_code": (
        "ValueError: The repository /models contains custom code which must be executed to correctly load the model.",
        ["code of its own"],
    ),
    "port_in_use": (
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
        ["taken (0.0.0.0, 8000)", "replica_port_base"],
    ),
    "draft_kernel_missing": ("RuntimeError: 0 active drivers ([]). There should only be one.", ["Triton", "{mtp: false}"]),
    "cache_not_writable": ("PermissionError: [Errno 13] Permission denied: '/cache/vllm'", ["may not use /cache/vllm", "replica_uid"]),
    "read_only_root": ("OSError: [Errno 30] Read-only file system: '/root/.cache/hub'", ["wants to write /root/.cache/hub"]),
    "passwd_locked": ("useradd: cannot lock /etc/passwd; try again later.", ["entrypoint makes a user"]),
    "user_without_name": ("KeyError: 'getpwuid(): uid not found: 64064'", ["user 64064", "TORCHINDUCTOR_CACHE_DIR"]),
    "noexec": (
        "OSError: /tmp/tmp8x1/libkernel.so: failed to map segment from shared object",
        ["/tmp/tmp8x1/libkernel.so lies where nothing may be executed"],
    ),
    "compile_cache": (
        "FileNotFoundError: [Errno 2] No such file or directory: '/cache/triton/AB12/fused_moe_kernel.cubin.tmp.pid_72_945989'",
        ["/cache/triton/AB12/fused_moe_kernel.cubin.tmp.pid_72_945989", "one cache per replica"],
    ),
    "resource_busy": (
        "OSError: [Errno 16] Device or resource busy: '/cache/triton/.nfs0000000002'",
        ["in use", "/cache/triton/.nfs0000000002", "one cache per replica"],
    ),
    "disk_error": ("OSError: [Errno 5] Input/output error: '/cache/vllm'", ["takes or gives no data (/cache/vllm)", "it is full", "dmesg"]),
    "clock_behind": (
        "x509: certificate has expired or is not yet valid: current time 2022-12-20T18:29:07Z is before 2023-02-22T00:00:00Z",
        ["clock is behind", "(current time 2022-12-20T18:29:07Z is before 2023-02-22T00:00:00Z)", "preflight.yml"],
    ),
    "certificate_expired": (
        "x509: certificate has expired or is not yet valid: current time 2026-12-01T03:00:00Z is after 2026-11-30T00:00:00Z",
        ["expired, or the host's clock is ahead (current time 2026-12-01T03:00:00Z is after 2026-11-30T00:00:00Z)", "date -u"],
    ),
    "context_beyond_model": (
        "Value error, User-specified max_model_len (300000) is greater than the derived max_model_len (max_position_embeddings=262144 or "
        "model_max_length=None in model's config.json).",
        ["300000 tokens is beyond the 262144", "{max_model_len: 262144}"],
    ),
    "parser_unknown": (
        "KeyError: 'invalid tool call parser: qwen4_coder (chose from { hermes,qwen3_coder })'",
        ["no tool call parser called qwen4_coder", "tool_call_parser"],
    ),
    "no_card_seen": ("RuntimeError: No HIP GPUs are available", ["sees no card", "preflight"]),
    "disk_full": ("OSError: [Errno 28] No space left on device", ["a disk is full"]),
    "hygon_hyhal": (
        "ImportError: librocm_smi64.so.2: cannot open shared object file: No such file or directory",
        ["/opt/hyhal is not mounted"],
    ),
    "hygon_dtk_environment": (
        "ImportError: libgalaxyhip.so.5: cannot open shared object file: No such file or directory",
        ["DTK environment", "LD_LIBRARY_PATH"],
    ),
    "hygon_mixed_driver": (
        "hy-smi: symbol lookup error: /opt/hyhal/lib/libhcu_smi.so: undefined symbol: hcusmi_init",
        ["different versions (hcusmi_init is missing)"],
    ),
    "kfd_permission": (
        "Unable to open /dev/kfd read-write: Permission denied",
        ["may not open /dev/kfd (Permission denied)", "numeric group"],
    ),
    "node_dead": ("OSError: [Errno 19] No such device: '/dev/dri/card1'", ["/dev/dri/card1 is there and the device is not"]),
    "graph_capture": (
        "RuntimeError: HIP error: operation not permitted when stream is capturing",
        ["graph could not be captured", "{cudagraph: false}"],
    ),
    "ascend_device_held": (
        "dcmi model initialized failed, because the device is used. ret is -8020",
        ["held by another container", "docker ps"],
    ),
    "ascend_dcmi": ("dcmi module initialize failed. ret is -8005", ["code -8005", "replica_uid: 1000"]),
    "ascend_torch": ("RuntimeError: Initialize: drvRetCode=87, ErrCode=507899", ["could not open the NPU (drvRetCode=87)", "docker ps"]),
    "ascend_library_path": (
        "ImportError: libascend_hal.so: cannot open shared object file: No such file or directory",
        ["the driver's libascend_hal is not found"],
    ),
    "hccl_socket": (
        "EI0006: 2026-11-30-15:00:00.000.000 Getting socket times out. Reason: Remote Rank did not send the data in time.",
        ["HCCL link", "hccn_tool"],
    ),
    "hccl_transport": ("EI0009: Transport init error. Reason: [Create][DestLink]", ["HCCL link", "hccn.conf"]),
    "ascend_shared_expert_format": (
        "RuntimeError: mlp.shared_expert_gate.weight [2048, 1]: cannot be cast to FRACTAL_NZ format",
        ["NZ format", "{VLLM_ASCEND_ENABLE_NZ: '0'}"],
    ),
    "ascend_mtp": (
        "RuntimeError: call aclnnIncreFlashAttention failed, numAcceptedTokens is not supported",
        ["MTP crashes", "{mtp: false}"],
    ),
    "nvml_lost": ("pynvml.NVMLError_Unknown: Failed to initialize NVML: Unknown Error", ["lost its card", "made anew"]),
    "gpu_lost": (
        "Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error",
        ["GPU1 (0000:34:00.0) does not answer any more (Unknown Error)", "healthy cards too", "replica_allow_degraded"],
    ),
    "nvml_mismatch": ("Failed to initialize NVML: Driver/library version mismatch", ["not the one whose libraries", "reboot"]),
    "cuda_driver_old": (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver",
        ["older than the image needs (12020)"],
    ),
    "xid_fault": (
        "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        ["reported a fault (uncorrectable ECC error encountered)", "replica_allow_degraded"],
    ),
    "nccl_failed": (
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219, unhandled system error",
        ["could not set up their link", "NCCL_P2P_DISABLE=1"],
    ),
    "engine_core": (
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        ["first traceback"],
    ),
}


@pytest.fixture(scope="module")
def messages(shipped):
    return collect_messages(shipped["log_messages"])


def test_every_message_has_its_line(messages):
    assert set(messages) == set(LINES)
    assert len(messages) >= 25


@pytest.mark.parametrize("name", sorted(LINES))
def test_what_is_printed_is_understood(messages, name):
    line, words = LINES[name]
    log = "INFO 11-30 15:00:00 Loading weights took 61.20 seconds\n{0}\nINFO: Shutting down\n".format(line)
    (meaning,) = translate(log, {name: messages[name]})
    for word in words:
        assert word in meaning
    assert ". Fix: " in meaning
    assert "{" not in meaning.replace("{max_", "").replace("{mtp", "").replace("{cuda", "").replace("{VLLM", "").replace("{PYTORCH", "")


@pytest.mark.parametrize("name", sorted(LINES))
def test_it_is_the_first_that_is_named(messages, name):
    """No other message of the table takes the line for something else."""
    meanings = translate(LINES[name][0], messages)
    assert meanings[0] == translate(LINES[name][0], {name: messages[name]})[0]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (LINES["clock_behind"][0], "clock_behind"),
        (LINES["certificate_expired"][0], "certificate_expired"),
        # Words of the same cause in other mouths.
        ("[Errno 16] Device or resource busy", "resource_busy"),
        ("failed to register layer: Error processing tar file(exit status 1): write /x: no space left on device", "disk_full"),
        ("read /var/lib/docker/tmp/GetImageBlob1: input/output error", "disk_error"),
        ("ssl.SSLCertVerificationError: certificate verify failed: certificate is not yet valid (_ssl.c:1006)", "clock_behind"),
        ("ssl.SSLCertVerificationError: certificate verify failed: certificate has expired (_ssl.c:1006)", "certificate_expired"),
        ("DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)", "ascend_dcmi"),
        ("npu-smi: error while loading shared libraries: libc_sec.so: cannot open shared object file", "ascend_library_path"),
        ("OSError: [Errno 98] Address already in use", "port_in_use"),
        (
            "ValueError: Free memory on device (22.1/64.0 GiB) on startup is less than desired GPU memory utilization",
            "less_free_than_asked",
        ),
        ("LINK_ERROR_INFO ... wait socket establish timeout, role[0] rank[0] timeout[120 s]", "hccl_socket"),
    ],
)
def test_one_cause_has_many_words_and_one_meaning(messages, line, name):
    meanings = translate(line, messages)
    assert meanings == translate(line, {name: messages[name]}) and len(meanings) == 1


def test_a_healthy_start_means_nothing(messages):
    log = """\
INFO 11-30 15:00:01 [utils.py:233] non-default args: {'model_tag': '/models', 'port': 8000, 'max_model_len': 131072, 'enable_prefix_caching': True}
INFO 11-30 15:00:02 [model.py:541] Resolved architecture: Qwen3_5MoeForConditionalGeneration
INFO 11-30 15:00:02 [scheduler.py:226] Chunked prefill is enabled with max_num_batched_tokens=8192.
WARNING 11-30 15:00:03 [config.py:367] Mamba cache mode is set to 'align' for Qwen3_5MoeForConditionalGeneration by default when prefix caching is enabled
INFO 11-30 15:00:03 [config.py:384] Setting attention block size to 1056 tokens to ensure that attention page size is >= mamba page size.
INFO 11-30 15:01:04 [default_loader.py:291] Loading weights took 61.20 seconds
INFO 11-30 15:01:05 [gpu_model_runner.py:4712] Model loading took 35.04 GiB memory and 61.203 seconds
INFO 11-30 15:02:40 [gpu_worker.py:456] Available KV cache memory: 18.41 GiB
INFO 11-30 15:02:40 [kv_cache_utils.py:1324] Maximum concurrency for 131,072 tokens per request: 6.96x
INFO 11-30 15:03:40 [gpu_model_runner.py:5741] Graph capturing finished in 60 secs, took 0.62 GiB
INFO:     Application startup complete.
INFO:     127.0.0.1:41234 - "POST /v1/chat/completions HTTP/1.1" 200 OK
"""
    assert translate(log, messages) == []


def test_the_root_comes_before_what_follows_from_it(messages):
    log = LINES["context_estimated"][0] + "\n" + LINES["engine_core"][0]
    assert [meaning.split(";")[0] for meaning in translate(log, messages)] == [
        "the KV cache is too small for the context",
        "the engine's core process ended",
    ]


def test_the_last_figures_count_and_no_more_than_three_causes_are_named(messages):
    lines = [LINES["context_too_long"][0], LINES["context_too_long"][0].replace("7344", "9000")]
    assert "the longest allowed is 9000" in translate("\n".join(lines), messages)[0]
    assert len(translate("\n".join(line for line, _words in LINES.values()), messages)) == 3


def test_a_cause_is_never_put_together_from_two_lines(messages):
    log = 'FileNotFoundError: no shard found\nGoing on\n  File "/usr/lib/python3/site-packages/torch/_inductor/x.py", line 5'
    assert translate(log, messages) == []


def test_a_warning_of_the_link_is_no_cause(messages):
    log = "host:91:91 [0] NCCL WARN Call to ibv_create_qp failed\n" + LINES["no_cache_blocks"][0]
    assert [meaning.split(",")[0] for meaning in translate(log, messages)] == ["weights"]


@pytest.mark.parametrize("what", ["HeaderTooLarge", "invalid header", "incomplete metadata, file not fully covered", "header too large"])
def test_every_damage_of_a_header_is_damage(messages, what):
    (meaning,) = translate("SafetensorError: Error while deserializing header: " + what, messages)
    assert "cut off or damaged ({0})".format(what.split(",")[0]) in meaning


def test_only_the_engines_own_words_are_read(shipped):
    both, other = (collect_messages(shipped["log_messages"], engine) for engine in ("vllm", "sglang"))
    assert "no_cache_blocks" in both and "no_cache_blocks" not in other
    assert "disk_full" in other
    assert set(both["disk_full"]) == {"pattern", "cause", "fix"}


def test_every_message_says_where_it_is_from(shipped):
    for table in shipped["log_messages"].values():
        for name, message in table["messages"].items():
            assert message["source"] and message["grade"] in ("vendor_verified", "recipe_measured", "locally_measured", "reported"), name


def test_every_option_that_a_remedy_names_is_there(shipped):
    specs = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(ROLES.glob("*/meta/argument_specs.yml"))]
    options = {name for spec in specs for point in spec["argument_specs"].values() for name in point.get("options", {})}
    # Collection-wide values are read in the roles' defaults.
    options |= {
        name for path in ROLES.glob("*/defaults/main.yml") for name in re.findall(r"\bllm_[a-z_]+", path.read_text(encoding="utf-8"))
    }
    roles = "|".join(path.name for path in ROLES.iterdir() if path.is_dir())
    named = [
        (name, word)
        for table in shipped["log_messages"].values()
        for name, message in table["messages"].items()
        for word in re.findall(rf"\b(?:llm|{roles})_[a-z_]+", message["fix"])
    ]
    assert len(named) > 10
    assert [(name, word) for name, word in named if word not in options] == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pattern": "("}, "message 'm': pattern '\\(' is no regular expression"),
        ({"cause": "no {room}"}, "message 'm' names 'room', which its pattern does not find"),
        ({"fix": "set {a: b}"}, "message 'm' names"),
        ({"fixed": "x"}, "unknown key 'm.fixed'; did you mean \"fix\""),
        ({"fix": None}, "key 'm.fix' must be text, found None"),
    ],
)
def test_a_message_that_is_none(change, says):
    good = {"pattern": "x (?P<y>.)", "cause": "it is {y}", "fix": "do", "source": "s", "date": "2026-10-01", "grade": "reported"}
    check_messages({"m": good}, "t")
    with pytest.raises(LLMError, match="t: .*" + says if "unknown" in says or "key" in says else "t: " + says):
        check_messages({"m": dict(good, **change)}, "t")
    with pytest.raises(LLMError, match="t: message 'm' lacks its 'source'"):
        check_messages({"m": {key: value for key, value in good.items() if key != "source"}}, "t")
    with pytest.raises(LLMError, match="t: message 'm' must be a mapping"):
        check_messages({"m": "x"}, "t")


def test_one_message_stands_in_one_table(shipped):
    tables = copy.deepcopy(shipped["log_messages"])
    tables["mine"] = {"messages": {"disk_full": tables["engines"]["messages"]["disk_full"]}}
    with pytest.raises(LLMError, match="log_messages 'mine': message 'disk_full' stands in another table too"):
        collect_messages(tables)


# Secrets


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("VLLM_API_KEY=abc123def", "abc123def"),
        ("--api-key abc123def --port 8000", "abc123def"),
        ("non-default args: {'api_key': ['abc123def', 'second4'], 'port': 8000}", "second4"),
        ("non-default args: {'api_key': ['abc123def'], 'port': 8000}", "abc123def"),
        ('{"hf_token": "tok_99", "x": 1}', "tok_99"),
        ("MODELSCOPE_API_TOKEN: tok99", "tok99"),
        ("Authorization: Bearer eyJhbGciOi.J9", "eyJhbGciOi.J9"),
        ("authorization=Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("got bearer abcdefgh12", "abcdefgh12"),
        ("http://proxy:pa55word@192.0.2.1:3128/", "pa55word"),
        ("wrong key sk-abcdefghijklmnopqrstuv given", "sk-abcdefghijklmnopqrstuv"),
        ("hf_abcdefghijklmnopqrstuv", "hf_abcdefghijklmnopqrstuv"),
        ("db password = 'hunter22'", "hunter22"),
        ("aws_secret_access_key: AKIA77", "AKIA77"),
    ],
)
def test_secrets_are_hidden(text, secret):
    masked = mask(text)
    assert secret not in masked and HIDDEN in masked


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=64 prompt_tokens: 120 num_speculative_tokens=2",
        "Maximum concurrency for 131,072 tokens per request: 6.96x",
        "tokenizer='/models', tokenizer_mode=auto, skip_tokenizer_init=False",
        "'api_key': None, token=None",
        "eos_token: <|im_end|>",
        "http://127.0.0.1:8000/v1/models",
        "the key is in /run/secrets/engine.key",
        "KeyError: 'getpwuid(): uid not found: 64064'",
    ],
)
def test_what_is_no_secret_stays(text):
    assert mask(text) == text


@given(
    secret=st.text("abcdefghijklmnopqrstuvwxyzABCDEF0123456789", min_size=8, max_size=48),
    before=st.text(max_size=20),
    after=st.text(max_size=20),
)
def test_a_known_secret_is_hidden_wherever_it_stands(secret, before, after):
    assert secret not in mask(before + secret + after, [secret]) or secret in HIDDEN


def test_an_empty_secret_hides_nothing():
    assert mask("abc", ["", "b"]) == "abc"


# The message


def test_the_last_fifty_lines():
    log = "\n".join("line {0}".format(number) for number in range(200))
    assert tail(log).splitlines() == ["line {0}".format(number) for number in range(150, 200)]
    assert tail("") == tail("\n\n") == "(none)"


def test_last_words_say_the_meaning_first_and_hide_the_key(messages):
    log = "args: {'api_key': ['sesame99']}\nkey is sesame99\n" + LINES["disk_full"][0]
    text = last_words(log, messages, 1, False, ["sesame99"])
    assert text.startswith("It means: a disk is full. Fix: free space")
    assert "Its last log lines:\nargs: {'api_key': " + HIDDEN + "}\nkey is " + HIDDEN in text
    assert "sesame99" not in text


@pytest.mark.parametrize(
    ("exit_code", "oom_killed", "words"),
    [
        (137, True, "memory limit was reached"),
        (137, False, "SIGKILL"),
        (139, False, "signal 11"),
        (134, False, "signal 6"),
        (127, False, "not found"),
    ],
)
def test_how_it_ended_says_something_too(exit_code, oom_killed, words):
    assert words in last_words("", {}, exit_code, oom_killed)
    assert last_words("", {}, 1, False) == "Its last log lines:\n(none)"
