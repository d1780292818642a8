import type { RequestCounts } from '../../db/sales'

/** Counts of requests by curl to one route. */
export function countsOf(asked: number, paid: number, failed: number): RequestCounts[] {
  const of = { merchant: 'shop', route: '/item', client: 'curl' } as const
  return [
    { ...of, step: 'asked', detail: '', times: asked },
    { ...of, step: 'tried', detail: 'x402', times: paid + failed },
    { ...of, step: 'refused', detail: 'rate-limited', times: failed },
    { ...of, step: 'paid', detail: '', times: paid },
  ]
}
