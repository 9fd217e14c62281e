"""What developers and tests run on the operator's declarations. No part of any image or distribution."""
