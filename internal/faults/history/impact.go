package history

// Impact is what faults of one kind have done.
type Impact struct {
	Times    int
	Lost     int // holds that met one and were lost, or died with their process
	Overlaps int // holds that met one and were still believed in when the next was granted: the server had ended them
}

// Impacts counts by kind. A hold that met several faults counts for each.
func (r *Run) Impacts() map[string]Impact {
	holds := r.holds(r.operations())
	impacts := map[string]Impact{}
	for i := range r.Disturbances {
		d := &r.Disturbances[i]
		impact := impacts[d.Kind]
		impact.Times++
		for _, hs := range holds {
			for n, h := range hs {
				if !d.hits(h.acquire.client) || h.acquire.called > max(d.Begun, d.Ending) || h.gone < d.Begin {
					continue
				}
				if h.how != "released" {
					impact.Lost++
				}
				if d.endsSessions() && n+1 < len(hs) && hs[n+1].acquire.returned < h.free {
					impact.Overlaps++
				}
			}
		}
		impacts[d.Kind] = impact
	}
	return impacts
}
