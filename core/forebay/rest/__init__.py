"""What both tiers' REST interfaces share: parameters, answers, problems, documents."""
