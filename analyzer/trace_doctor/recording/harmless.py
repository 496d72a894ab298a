"""Which words of a command line are known to be harmless: numbers, known words, and words of a harmless shape.

What is shaped like a word can still be somebody's password. So little of a value may be unknown (`_MOST_UNKNOWN`
letters) that nothing with the length of a key passes, whatever its letters are. Standard library only.
"""

from __future__ import annotations

import re

MASK = "***"
"""stands for all that is not known to be harmless"""
LONGEST_KNOWN = 48
"""characters of a value that consists of known words"""
LONGEST = 24
"""characters of a value of which a part is unknown"""
_MOST_UNKNOWN = 11
"""letters of a value that belong to no known word"""
_MOST_BESIDE_DIGITS = 8
"""the same where digits follow them directly: `wikitext103`"""
_MOST_DIGITS = 8
_MOST_SINGLE = 4
"""parts of one character: more of them are a key that was written in groups"""
_MOST_ODD = 1
"""unknown words of a value that have one or two letters, or no vowel"""


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


HARMLESS_WORDS = words("""
    addr blr uri url
    abs accelerate accelerator accumulation accuracy activation activations actor acts adafactor adagrad
    adam adamw adapter add affinity after again agent aggressive alexnet alignment all alloc allocator
    allow allreduce alpha amount amp amsgrad anchor anchors and annealing answer answers any ap apex app
    append apply arch architecture arg args arrow assistant async asynchronous at atari atoms attention
    attn audio augment augmentation augmentations auto autocast autoencoder autograd automatic autotune
    average avg aws
    backbone backend backends backward balanced bar base baseline basic batch batches batchnorm be
    before benchmark bert best beta betas between bfloat bfs bi bias bidirectional bigger bin bins bits
    bitsandbytes bleu block blocks bloom bm25 bond bonds book books bool bos both box boxes bs bucket
    bucketing buffer build by bytes
    c10d cache calibration call callback callbacks camera cap caption captions capture card causal cell
    cells center central channel channels char chat check checkpoint checkpointing checkpoints chunk
    cifar ckpt class classes classification classifier classifiers click clicks clip clipping cls
    cluster cnn coco code codebook coef coefficient collate collator color column columns comm common
    communicate communication compile compiler compute conf config configs configuration connections
    constant context contrastive control conv convnext convolution copy core cores corpus cosine count
    cpu critic crop cross crystal csv ctr cube cublas cuda cudnn current cut cutoff cycle
    data dataloader dataset datasets date ddim ddp ddpm deberta debug decay decoder deep deepspeed
    default deit delta denoise denoising dense depth detect detection determinism deterministic dev
    device devices dialog diffusion dim dimension dimensions dims dir directory disable discount
    discriminator disk dispatch dist distilbert distillation distributed distribution distributions do
    doc docker document documents dot double down download dpo dpr drop dropout dry dtype dual dump
    duration dynamic dynamo
    each eager early edge edges effective efficient efficientnet elastic electra ema embed embedding
    embeddings empty enable encoder end endpoint energy engine ensemble entropy env environment
    environments eos episode episodes epoch epochs eps epsilon error eval evaluate evaluation ever every
    example examples exclude exec exp expandable experiment experimental experts exponential export
    extra
    f1 factor fairseq faiss false fast faster fastest fbgemm feature features file files fill filter
    final find fine finetune finetuning first fit flag flash flax flex flip float fn fold folder for
    force forces format forward fp fpn frac fraction frame frames framework freeze freq frequencies
    frequency from fsdp full fused fusion
    gain gamma gan gas gat gb gcn gelu gen generate generation generator given global gloo glue gnn gpt
    gpu gpus grad gradient gradients gradual graph graphs grid group groups guidance gym gz
    half has have head heads height help here hf hidden hierarchical hip histogram history hook hop hops
    horizon horovod host hosts hour hours html http https hub hydra hyper hyperparameter hyperparameters
    id ids if ignore image imagenet images img imgsz implementation implementations importtime in
    include index indices inductor inf infer inference info information init initial initialization
    initializer inner inpaint input inputs inside instance instruct int interleave intermediate interop
    interpolate interpolation interval into invert io iou is item items iter iteration iterations iters
    jar jax jit job jobs join json jsonl just
    keep kernel kernels keypoint keypoints kind kl kto kwargs
    label labels lam lambda language large last latent launch launcher layer layers layout lazy learning
    left len length less level levels lexical library lidar lightning like limit linear list litgpt
    llama llm lm load loader loading local localhost localization log logger logging logs long lora loss
    losses lower lowest lr lstm
    machine machines mae main make mamba manual many map mask masked masking master mat matmul max
    maximum mb mean medium megatron mel mem memory merge meta metric metrics microbatch min mini minimum
    mistral mixed mixtral mixture mixup ml mlflow mlm mlp mnist mnli mobilenet modality mode model
    models module modules molecule molecules momentum monitor more most movie movies mp mpi mpirun mps
    mse mt much multi multilingual multiprocessing music my
    name names nccl neck negative nesterov net network neural new news next nf nice nms no node nodes
    noise none norm normalization normalize normalizer not note nproc nsys ntasks num number numpy
    obj object odd of off offline offload offset old omp on once one onecycle online only onnx op
    openwebtext opt optim optimization optimize optimizer optimizers option options or orpo out output
    outputs over overlap override overrides overwrite own
    pack packed packing pad padding page paged pair pairs panoptic paragraph parallel parallelism
    parallelization param parameter parameters params parquet partition passage passages patch path
    paths patience peak peft penalty per percent percentile period perplexity persistent phase phi
    physics pin pipe pipeline pixel pixels pkg plan plateau plot plugin png points policy poly pool
    pooling port pose position positive post postprocessing power ppl ppo pre precision predict
    prediction prefetch prefix preload preprocess preprocessing pretrain pretrained print prior process
    processes processing profile profiler progress progressive proj project projection prompt proportion
    protein provider prune pt pth ptl push py python pytorch
    qkv qlora quant quantile quantization quantize quantized queries query question questions queue
    quick quiet qwen
    ram random range rank ranking ranks rate rating ratings ratio rcnn rdzv read ready recall
    recognition recompute reconstruction reduce reduction refresh reg region regression regularization
    regularize regularizer reinforcement relative release relu remat remote remove repeat repeats
    repetition replay replicas repo report repository representation representations request reset
    reshape residual resize resnet resolution response responses restart restarts restore result results
    resume retries retrieval retriever return reuse revision reward rf right ring rlhf rms rmse rmsprop
    rnn roberta rocm rollout rollouts root rope rotary rotate rouge round rounds router row run runs rw
    safe safetensors sage sam same sample sampler samples sampling save scalar scale scaler scaling scan
    scans scene schedule scheduler scope score scores scratch script scripts sdpa search second seconds
    section seed seeded segment segmentation segments select self selfsupervised semantic sentence seq
    sequence sequences server set settings sft sgd shakespeare shape shard sharded sharding shards share
    shared shift short shuffle siamese sigma silu simulation since single size sizes skip slice slices
    slide slides slow slurm small smaller smooth smoothing soft softmax solver some sort source space
    spark sparse spec special specification speech speed split splits squad stable stack stage stages
    standalone start state static stats std stem step steps stochastic stop storage store stories story
    strategy stream streaming strict stride student style sub submit subset such suffix sum
    summarization summary super supervised swa swin switch sync synchronization synchronize synchronous
    synthetic sys system
    table tag target targets task tasks teacher temp temperature template tensor tensorboard tensorrt
    tensors terms test tests text tf than that the there this thread threads threshold through tile time
    timeout times tiny tissue tmp to tokenization tokenize tokenizer tokenizers top topk topology torch
    torchaudio torchdynamo torchrun torchvision total tower towers trace track tracking tracks train
    trainer training transfer transform transformer transformers translation tree trial triple triples
    triplet triton trl true truncate truncation trust tune tuning tutorial two txt type types
    ulysses under unet unfreeze unidirectional uniform unigram unit units unk unsupervised until up
    update updates upper use usr utf utils uv
    vae val valid validate validation value values var variance vectors venv verbose version vgg via
    video view virtual visible vision visualization visualize visualizer vit vocab vocabulary voice
    volume volumes
    wait walk walks wandb warm warmup warn warning was wav waveform webdataset weight weighted weights
    wer when where which while whole wide width wikipedia wikitext window with without word words work
    worker workers workspace world wrap write
    xformers xl xla xlm xlnet
    yaml yes yml yolo
    zero zip
    """)
"""words of training commands: what options, models, data sets and their values are called"""

PROGRAMS = words("""accelerate axolotl bash composer conda curl deepspeed docker env horovodrun java lightning mpiexec mpirun mysql nice nohup
    nsys pdm pixi poetry podman pypy python python3 rsync sbatch sh singularity srun ssh stdbuf sudo taskset time timeout
    torchrun trl uv xvfb-run""")

_NUMBER = re.compile(
    r"[+-]?(?:\d[\d_]*\.?[\d_]*|\.\d+)(?:[eE][+-]?\d{1,3})?(?P<unit>[a-zA-Z]{1,3}|%)?|[+-]?0[xX][0-9a-fA-F]{1,6}|[+-]?(?:inf|nan)"
)
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}|(?:\d{1,3}-)?\d{1,3}(?::\d{2}){1,2}|\d{1,3}-\d{1,3}|\d{1,4}:\d{1,4}")
_LONGEST_NUMBER = 32
_MOST_FIGURES = 9
"""in front of the point: one more is a telephone"""
_MOST_SIGNIFICANT = 10
"""as many as people type; more are a card or a key with a point in it, or nothing that anybody reads"""
_MOST_FIGURES_WITH_ZEROS = 18
"""a small number may begin with zeros, but not with any number of them"""
_UNITS = words("b d e f g gb gib h hz k kb kib m mb mib min ms ns p px s sec t tb tib us w x y")
_MACHINE = re.compile(r"\d+(?:\.\d+){3,}")
"""the address of a machine"""
_RUNS = re.compile(r"[A-Za-z]+|\d+")
_VOWEL = re.compile("[aeiouy]", re.IGNORECASE)
_HUMPS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def is_number(text: str) -> bool:
    """Numbers as training uses them, with a unit of theirs, dates and times; not as long as those of cards, accounts
    and telephones."""
    if _TIME.fullmatch(text):
        return True
    if len(text) > _LONGEST_NUMBER or not (number := _NUMBER.fullmatch(text)):
        return False
    if number["unit"] and number["unit"] != "%" and number["unit"].lower() not in _UNITS:
        return False
    whole, _, decimals = text.replace("_", "").partition(".")
    figures = _figures(whole + decimals)
    significant = figures.lstrip("0")
    return (
        len(_figures(whole)) <= _MOST_FIGURES
        and len(significant) <= _MOST_SIGNIFICANT
        and len(figures) <= _MOST_FIGURES_WITH_ZEROS
    )


def _figures(text: str) -> str:
    """Those of an exponent as well: a key may be spelled as one."""
    return "".join(c for c in text if c.isdigit())


def is_known(text: str) -> bool:
    """Whether the text consists of known words and short numbers: nothing that somebody has chosen."""
    return len(text) <= LONGEST_KNOWN and unknown_letters(text) == 0


def is_word(text: str, *, most_unknown: int = _MOST_UNKNOWN, longest: int = LONGEST) -> bool:
    """Whether the text has the shape of a name: words, with few letters of which it is not known what they say."""
    unknown = unknown_letters(
        text, most_digits=_MOST_DIGITS if longest <= LONGEST_KNOWN else 2 * _MOST_DIGITS
    )
    if unknown is None:
        return False
    return unknown <= most_unknown and len(text) <= (longest if unknown else max(longest, LONGEST_KNOWN))


def unknown_letters(text: str, *, most_digits: int = _MOST_DIGITS) -> int | None:
    """How many letters belong to no known word; None for what is not made of words and short numbers."""
    if not re.fullmatch(r"[A-Za-z0-9_.+-]+", text) or sum(c.isdigit() for c in text) > most_digits:
        return None
    if _MACHINE.search(text):
        return None
    parts = [part for part in re.split(r"[_.+-]+", text) if part]
    if sum(len(part) == 1 for part in parts) > _MOST_SINGLE:
        return None
    unknown_words = [_unknown(part) for part in parts]
    if not parts or None in unknown_words:
        return None
    unknown = [word for words in unknown_words for word in words or ()]
    odd = sum(len(word) <= 2 or not _VOWEL.search(word) for word in unknown)
    return None if odd > _MOST_ODD else sum(map(len, unknown))


def _unknown(part: str) -> list[str] | None:
    """The unknown words of one part: a word, a number, or a word with a number at its end or beginning (`resnet50`, `7b`,
    `vit16x`); None for anything else."""
    if part.lower() in HARMLESS_WORDS or len(part) == 1:
        return []
    runs = _RUNS.findall(part)
    kinds = "".join("9" if run.isdigit() else "a" for run in runs)
    if kinds not in ("a", "9", "a9", "9a", "a9a"):
        return None
    if any(run.isdigit() and len(run) > 4 for run in runs) and kinds != "9":
        return None
    if kinds == "9a" and runs[1].lower() in _UNITS:
        return []
    if (kinds == "a9a" and len(runs[2]) > 2) or (kinds == "9a" and len(runs[1]) > 3):
        return None
    words = [run for run in runs if not run.isdigit() and run.lower() not in HARMLESS_WORDS]
    unknown = [
        hump
        for run in words
        for hump in _HUMPS.findall(run)
        if len(hump) == 1 or hump.lower() not in HARMLESS_WORDS
    ]
    if not all(map(_speakable, unknown)) or (kinds != "a" and sum(map(len, unknown)) > _MOST_BESIDE_DIGITS):
        return None
    return unknown


def _speakable(letters: str) -> bool:
    """Whether somebody could say it: random letters have too many consonants in a row, or too few vowels."""
    lower = letters.lower()
    vowels = len(_VOWEL.findall(lower))
    return len(lower) <= 4 or (vowels * 6 >= len(lower) and re.search("[^aeiouy]{5}", lower) is None)
