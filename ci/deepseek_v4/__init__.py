"""Small DeepSeek-V4 models for tests: their geometry, tensors, tokenizer and prompts."""
