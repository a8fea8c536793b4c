"""Shows webrl's runs: a report page, a viewer of episodes, model cards on the Hugging Face Hub."""
