import fc from 'fast-check'
import type { Id } from '../../src/protocol/Network'
import { countOf } from './samples'

export const paxos = 'eip155:4663'

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
  overpaid: {},
  underpaid: {},
  expired: {},
  almostExpired: {},
  longValid: {},
  notYet: {},
  acceptedScheme: {},
  acceptedNetwork: {},
  noName: {},
  otherName: {},
  otherVersion: {},
  signedOtherName: {},
  signedOtherVersion: {},
  otherAsset: {},
  emptyAsset: {},
  otherSpender: {},
  otherToken: {},
  tooMuch: {},
  usedNonce: {},
  hexValue: {},
  zeroPadded: {},
  noAccepted: {},
  version3: {},
  otherScheme: {},
  unknownNetwork: {},
  noSignature: {},
  selfPaid: {},
} as const
export type Fault = keyof typeof faults

/** A payment for a facilitator: its method, and its faults. */
export type Spec = {
  network: Id
  method: 'eip3009' | 'permit2'
  payer: (typeof payers)[number]
  faults: readonly Fault[]
}

const specs: fc.Arbitrary<Spec> = fc
  .record({
    kind: fc.constantFrom(
      ['eip155:8453', 'eip3009'] as const,
      ['eip155:8453', 'eip3009'] as const,
      [paxos, 'eip3009'] as const,
      [paxos, 'permit2'] as const,
      [paxos, 'permit2'] as const,
    ),
    payer: fc.constantFrom(...payers),
    faults: fc.uniqueArray(fc.constantFrom(...(Object.keys(faults) as Fault[])), { maxLength: 3 }),
  })
  .map(({ kind: [network, method], payer, faults }) => ({ network, method, payer, faults }))

const seed = 4663

/** Every kind of payer, every fault alone, and combinations. */
export function generated(): Spec[] {
  const kinds = [
    ['eip155:8453', 'eip3009'],
    [paxos, 'eip3009'],
    [paxos, 'permit2'],
  ] as const
  const alone = (Object.keys(faults) as Fault[]).flatMap((fault) =>
    kinds.map(([network, method]): Spec => ({ network, method, payer: 'rich', faults: [fault] })),
  )
  const plain = [...new Set(payers)].flatMap((payer) =>
    kinds.map(([network, method]): Spec => ({ network, method, payer, faults: [] })),
  )
  // Differences that are named, and that only these show.
  const named = kinds.flatMap(([network, method]): Spec[] => [
    { network, method, payer: 'delegated', faults: ['lowV'] },
    { network, method, payer: 'rich', faults: ['usedNonce', 'expired'] },
  ])
  return [...plain, ...named, ...alone, ...fc.sample(specs, { seed, numRuns: countOf(250) })]
}

/** Two faults at a time, to show which one is reported first. */
export function pairs(): Spec[] {
  const ranked: readonly Fault[] = [
    'acceptedScheme',
    'noName',
    'acceptedNetwork',
    'wrongSigner',
    'otherSpender',
    'otherSignedPayee',
    'expired',
    'notYet',
    'overpaid',
    'otherToken',
    'otherName',
    'otherVersion',
    'usedNonce',
    'tooMuch',
  ]
  const kinds = [
    ['eip155:8453', 'eip3009'],
    [paxos, 'permit2'],
  ] as const
  return ranked.flatMap((first, index) =>
    ranked.slice(index + 1).flatMap((second) =>
      kinds.map(
        ([network, method]): Spec => ({
          network,
          method,
          payer: 'rich',
          faults: [first, second],
        }),
      ),
    ),
  )
}
