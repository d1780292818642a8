import type { Protocol } from './payers'

export type Candidate = {
  name: string
  /**
   * `postgres` is ours on PostgreSQL. `tuned` and `shipped` are peers; `further` is tuned beyond the
   * documentation of any peer.
   */
  kind: 'ours' | 'postgres' | 'tuned' | 'shipped' | 'further'
  protocol: Protocol
  /** In `servers/`, started with the chain's URL and these arguments. */
  script: string
  args: readonly string[]
}

export const candidates: readonly Candidate[] = [
  { name: 'ours, MPP', kind: 'ours', protocol: 'mpp', script: 'ours.ts', args: [] },
  { name: 'ours, x402', kind: 'ours', protocol: 'x402', script: 'ours.ts', args: [] },
  {
    name: 'ours, x402, PostgreSQL',
    kind: 'postgres',
    protocol: 'x402',
    script: 'ours-postgres.ts',
    args: [],
  },
  { name: 'mppx, tuned', kind: 'tuned', protocol: 'mpp', script: 'mppx.ts', args: ['tuned'] },
  { name: 'x402, tuned', kind: 'tuned', protocol: 'x402', script: 'x402.ts', args: ['tuned'] },
  { name: 'mppx, shipped', kind: 'shipped', protocol: 'mpp', script: 'mppx.ts', args: ['shipped'] },
  {
    name: 'x402, shipped',
    kind: 'shipped',
    protocol: 'x402',
    script: 'x402.ts',
    args: ['shipped'],
  },
  { name: 'ours, upto', kind: 'ours', protocol: 'upto', script: 'ours-upto.ts', args: [] },
  {
    name: 'x402 upto, tuned',
    kind: 'tuned',
    protocol: 'upto',
    script: 'x402-upto.ts',
    args: ['tuned'],
  },
  {
    name: 'x402 upto, shipped',
    kind: 'shipped',
    protocol: 'upto',
    script: 'x402-upto.ts',
    args: ['shipped'],
  },
  { name: 'mppx, sync', kind: 'further', protocol: 'mpp', script: 'mppx.ts', args: ['sync'] },
]

/** Candidates are compared within a scheme. */
export function schemeOf({ protocol }: Candidate): 'exact' | 'upto' {
  return protocol === 'upto' ? 'upto' : 'exact'
}

/** A load: how many payers at once, and how many payments each of them makes. */
export type Load = {
  name: string
  payers: number
  /** Payments of each payer that count, after those that warm up. */
  each: number
  warmUp: number
  /** The same for peers as shipped, which wait a second for half of their receipts. */
  eachShipped: number
  warmUpShipped: number
  /** Absent: a block per transaction. */
  blockTimeMs?: number
  rounds: number
  /** Whether the candidates beyond any documentation take part. */
  withFurther: boolean
  /** Whose candidates take part. */
  schemes: readonly ('exact' | 'upto')[]
}

/** Short loads first. The chain slows down as it grows: payments are counted, not seconds. */
export const loads: readonly Load[] = [
  {
    name: '1 payer',
    payers: 1,
    each: 128,
    warmUp: 32,
    eachShipped: 6,
    warmUpShipped: 2,
    rounds: 3,
    withFurther: true,
    schemes: ['exact', 'upto'],
  },
  {
    name: '32 payers',
    payers: 32,
    each: 16,
    // A server that has run for a while has its code compiled.
    warmUp: 8,
    eachShipped: 16,
    warmUpShipped: 2,
    rounds: 3,
    withFurther: true,
    schemes: ['exact', 'upto'],
  },
  {
    name: '256 payers',
    payers: 256,
    each: 4,
    warmUp: 1,
    eachShipped: 4,
    warmUpShipped: 1,
    rounds: 2,
    withFurther: false,
    schemes: ['exact'],
  },
  {
    name: '256 payers, 1 s blocks',
    payers: 256,
    each: 5,
    warmUp: 1,
    eachShipped: 5,
    warmUpShipped: 1,
    blockTimeMs: 1000,
    rounds: 2,
    withFurther: false,
    schemes: ['exact'],
  },
  ...[200, 2_000].map(
    (blockTimeMs): Load => ({
      name: `32 payers, ${blockTimeMs} ms blocks`,
      payers: 32,
      each: blockTimeMs < 1_000 ? 16 : 4,
      warmUp: 2,
      eachShipped: 2,
      warmUpShipped: 1,
      blockTimeMs,
      rounds: 2,
      withFurther: false,
      schemes: ['upto'],
    }),
  ),
]

/** The run of CI: shows that all of it works, and a rough comparison. */
export const quickLoads: readonly Load[] = loads
  .filter(({ payers, blockTimeMs }) => payers <= 32 || blockTimeMs !== undefined)
  .map((load) => ({
    ...load,
    each: Math.max(1, load.each >> 2),
    eachShipped: Math.max(1, load.eachShipped >> 2),
    warmUp: Math.max(1, load.warmUp >> 2),
    warmUpShipped: 1,
    rounds: 1,
    withFurther: false,
  }))

/**
 * A load with at least so many payments before those that count, and so many that count, by all payers
 * together.
 */
export function lengthened(load: Load, { warmUp = 0, payments = 0 }): Load {
  const each = (count: number, least: number) => Math.max(least, Math.ceil(count / load.payers))
  return { ...load, warmUp: each(warmUp, load.warmUp), each: each(payments, load.each) }
}
