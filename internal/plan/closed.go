package plan

// ClosedForm says what the request's own setting needs by the closed form alone:
// for callers that want an answer, good to about a tenth, where the engine
// cannot play the run.
func ClosedForm(req *Request) (Judgement, error) {
	r := *req
	r.Judge, r.Quick = nil, nil
	p, err := newPlanner(&r)
	if err != nil {
		return Judgement{}, err
	}
	return p.judge(&p.base), nil
}
