import { expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { type Account, type Charge, findMismatches } from './charges'

/** The audit of the hostile soak, with inconsistent data. */

const honest = account(1).address
const hostile = account(3).address.toLowerCase()
const payer = honest.toLowerCase()
const nonceOf = (digit: number) => `0x${String(digit).repeat(64)}` as const

function charge(digit: number, changes: Partial<Charge> = {}): Charge {
  const rest = { state: 'confirmed', delivery: 'delivered', truncated: 0, ...changes }
  return { payer, nonce: nonceOf(digit), amountAtomic: 5n, ...rest }
}

/** Two answers and a refusal of honest clients, and a failed delivery to a hostile one. */
function sound(): Account {
  return {
    honest: [honest],
    priceAtomic: 5n,
    seen: [
      { nonce: nonceOf(1), isGood: true },
      { nonce: nonceOf(2), isGood: true },
      { nonce: nonceOf(3), isGood: false },
      { nonce: undefined, isGood: false },
    ],
    charges: [
      charge(1),
      charge(2),
      charge(3, { state: 'reverted', delivery: 'none' }),
      charge(5, { state: 'broadcast', delivery: 'none' }),
      charge(4, { payer: hostile, amountAtomic: 1n, delivery: 'none' }),
    ],
    moves: {
      transfers: [
        { payer, amountAtomic: 5n },
        { payer, amountAtomic: 5n },
        { payer: hostile, amountAtomic: 1n },
      ],
      used: [nonceOf(1), nonceOf(2), nonceOf(4)],
    },
  }
}

test('consistent data has no mismatch', () => {
  expect(findMismatches(sound())).toEqual([])
})

test('a payment that was sent when the program ended counts when it moved money', () => {
  const it = sound()
  const found = findMismatches({
    ...it,
    moves: { ...it.moves, used: [...it.moves.used, nonceOf(5)] },
  })
  expect(found).toContain(`${nonceOf(5)} was charged, and no honest client sent it`)
})

const faults: readonly (readonly [name: string, said: string, (it: Account) => Account])[] = [
  [
    'an answer that the ledger has as undelivered',
    `${nonceOf(2)} was answered, the ledger says none`,
    (it) => ({ ...it, charges: it.charges.with(1, charge(2, { delivery: 'none' })) }),
  ],
  [
    'an answer that the ledger has as truncated',
    `${nonceOf(2)} was answered`,
    (it) => ({ ...it, charges: it.charges.with(1, charge(2, { truncated: 1 })) }),
  ],
  [
    'an answer without a payment',
    'an answer was given without a payment',
    (it) => ({ ...it, seen: it.seen.with(3, { nonce: undefined, isGood: true }) }),
  ],
  [
    'an answer whose payment failed',
    `${nonceOf(3)} was answered, the ledger says nothing`,
    (it) => ({ ...it, seen: it.seen.with(2, { nonce: nonceOf(3), isGood: true }) }),
  ],
  [
    'a delivered payment whose client saw no answer',
    `${nonceOf(2)} was charged without an answer`,
    (it) => ({ ...it, seen: it.seen.with(1, { nonce: nonceOf(2), isGood: false }) }),
  ],
  [
    'a charge that no client sent',
    `${nonceOf(2)} was charged, and no honest client sent it`,
    (it) => ({ ...it, seen: it.seen.toSpliced(1, 1) }),
  ],
  [
    'two charges of one credential',
    `${nonceOf(2)} was charged twice`,
    (it) => ({ ...it, charges: [...it.charges, charge(2)] }),
  ],
  [
    'one credential for two answers',
    `${nonceOf(1)} paid for two requests`,
    (it) => ({ ...it, seen: [...it.seen, { nonce: nonceOf(1), isGood: true }] }),
  ],
  [
    'a charge that did not move money',
    `${nonceOf(4)} was charged and moved money 0 times`,
    (it) => ({ ...it, moves: { ...it.moves, used: it.moves.used.slice(0, 2) } }),
  ],
  [
    'money that moved twice',
    `${nonceOf(1)} was charged and moved money 2 times`,
    (it) => ({ ...it, moves: { ...it.moves, used: [...it.moves.used, nonceOf(1)] } }),
  ],
  [
    'money that the ledger does not know',
    `${nonceOf(3)} moved money that the ledger has not`,
    (it) => ({ ...it, moves: { ...it.moves, used: [...it.moves.used, nonceOf(3)] } }),
  ],
  [
    'a transfer of another amount than the price',
    'all payers: 10 moved, 11 charged',
    (it) => ({ ...it, moves: { ...it.moves, transfers: it.moves.transfers.slice(0, 2) } }),
  ],
  [
    'honest clients that pay more than the price',
    'honest payers: 10 moved, 8 charged',
    (it) => ({ ...it, priceAtomic: 4n }),
  ],
]
for (const [name, said, change] of faults)
  test(`error: ${name} is a mismatch`, () => {
    const found = findMismatches(change(sound()))
    expect(found.filter((line) => line.startsWith(said))).toHaveLength(1)
  })
