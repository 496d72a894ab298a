from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

model = AutoModelForCausalLM.from_pretrained("gpt2")
reference = AutoModelForCausalLM.from_pretrained("gpt2")
args = DPOConfig(output_dir="out", per_device_train_batch_size=4, optim="adamw_torch")
trainer = DPOTrainer(model, reference, args=args, train_dataset=read(), peft_config=LoraConfig())
trainer.train()
