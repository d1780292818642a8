import fc from 'fast-check'
import type { Id } from '../../src/protocol/Network'
import { countOf } from './samples'

const payers = [
  'rich',
  'rich',
  'rich',
  'poor',
  'unapproved',
  'wallet',
  'refusing',
  'delegated',
  'undeployed',
] as const

const faults = {
  wrongSigner: {},
  shortSignature: {},
  longSignature: {},
  lowV: {},
  highS: {},
  otherPayee: {},
  otherSignedPayee: {},
  otherFacilitator: {},
  noFacilitator: {},
  otherSpender: {},
  exactSpender: {},
  noSpender: {},
  noValidAfter: {},
  /** The required amount differs from the ceiling. */
  less: {},
  more: {},
  nothing: {},
  noCeiling: {},
  /** The ceiling is above the balance of a rich payer. */
  tooMuch: {},
  expired: {},
  almostExpired: {},
  longValid: {},
  notYet: {},
  acceptedScheme: {},
  acceptedNetwork: {},
  otherScheme: {},
  unknownNetwork: {},
  otherAsset: {},
  emptyAsset: {},
  otherToken: {},
  usedNonce: {},
  hexNonce: {},
  hexValue: {},
  zeroPadded: {},
  noAccepted: {},
  noSignature: {},
  version3: {},
  selfPaid: {},
  /** The payment uses another transfer method. */
  eip3009: {},
  /** An EIP-2612 permit, and what is wrong with it. */
  permit: {},
  permitAmount: {},
  permitOwner: {},
  permitAsset: {},
  permitSpender: {},
  permitDeadline: {},
  permitFormat: {},
} as const
export type UptoFault = keyof typeof faults

/** A payment of the scheme `upto` for a facilitator: its payer, and its faults. */
export type UptoSpec = {
  network: Id
  payer: (typeof payers)[number] | 'fresh'
  faults: readonly UptoFault[]
}

const networks = ['eip155:8453', 'eip155:4663'] as const

const specs: fc.Arbitrary<UptoSpec> = fc.record({
  network: fc.constantFrom(...networks),
  payer: fc.constantFrom(...payers),
  faults: fc.uniqueArray(fc.constantFrom(...(Object.keys(faults) as UptoFault[])), {
    maxLength: 3,
  }),
})

/** Every payer, every fault alone, and random combinations. */
export function generatedUpto(): UptoSpec[] {
  const names = Object.keys(faults) as UptoFault[]
  const permits = names.filter((name) => name.startsWith('permit'))
  return networks.flatMap((network, index): UptoSpec[] => [
    ...[...new Set(payers)].map((payer): UptoSpec => ({ network, payer, faults: [] })),
    ...names.map((fault): UptoSpec => ({ network, payer: 'rich', faults: [fault] })),
    // A payer of its own for each, without an allowance.
    ...permits.map((fault): UptoSpec => ({ network, payer: 'fresh', faults: [fault] })),
    { network, payer: 'fresh', faults: ['permit', 'nothing'] },
    { network, payer: 'fresh', faults: ['permit', 'more'] },
    ...fc.sample(specs, { seed: 402 + index, numRuns: countOf(120) }),
  ])
}

/** Two faults at a time, to show which one is reported first. */
export function pairsOfUpto(): UptoSpec[] {
  const ranked: readonly UptoFault[] = [
    'eip3009',
    'acceptedScheme',
    'acceptedNetwork',
    'otherSpender',
    'otherSignedPayee',
    'otherFacilitator',
    'expired',
    'notYet',
    'less',
    'otherToken',
    'wrongSigner',
    'permitOwner',
    'permitDeadline',
    'usedNonce',
    'tooMuch',
    'nothing',
    'more',
  ]
  return ranked.flatMap((first, index) =>
    ranked
      .slice(index + 1)
      .map(
        (second): UptoSpec => ({ network: 'eip155:8453', payer: 'rich', faults: [first, second] }),
      ),
  )
}
