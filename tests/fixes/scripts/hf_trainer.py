from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments


def main():
    tokenizer = AutoTokenizer.from_pretrained("gpt2")
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    data = load_dataset("wikitext", "wikitext-2-raw-v1").map(lambda row: tokenizer(row["text"]))
    args = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=8,
        logging_steps=1,
    )
    trainer = Trainer(model=model, args=args, train_dataset=data["train"])
    trainer.train()


if __name__ == "__main__":
    main()
