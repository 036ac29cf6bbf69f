"""What a run has saved: beside its twin at the top limit, computed from its books; and beside other runs, held out."""
