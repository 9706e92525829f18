from tests.core.checkpoint_fixtures import copied, extracted, spark_4_0, written

__all__ = ["copied", "extracted", "spark_4_0", "written"]
