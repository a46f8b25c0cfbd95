"""What the product answers to fixed questions, for comparisons of two trees."""
