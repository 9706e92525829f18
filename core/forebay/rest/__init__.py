"""Shared by both tiers' REST interfaces: parameters, answers, problems, documents."""
