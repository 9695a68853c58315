"""Trained models with frozen exponents: the deployed arithmetic, and its export."""
