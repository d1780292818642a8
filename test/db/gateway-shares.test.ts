import { describe, expect, test } from 'bun:test'
import fc from 'fast-check'
import { type Account, sharesOf } from '../../db/postgres/shares'
import { runs } from '../harness/samples'

/** One look of a gateway: it takes what it may, and gives one account that is above its part. */
function look(lanes: readonly Account[], all: readonly string[], own: string): boolean {
  // It sees what the others had at the start of its look.
  const seen = lanes.map((lane) => ({ ...lane, lane }))
  const others = all.filter((each) => each !== own)
  const shares = sharesOf(seen, { others, isOwn: ({ lane }) => lane.holder === own })
  let isChanged = false
  for (const each of seen) {
    if (each.lane.holder !== null || !shares.takes(each)) continue
    each.lane.holder = own
    isChanged = true
  }
  const [given] = shares.excess()
  if (given) given.lane.holder = null
  return isChanged || given !== undefined
}

/** Looks of all gateways in this order until none changes anything. */
function settle(lanes: readonly Account[], all: readonly string[]): void {
  for (let round = 1; round < 100; round++) {
    const changes = all.map((own) => look(lanes, all, own))
    if (!changes.some(Boolean)) return
  }
  throw new Error('the accounts never come to rest')
}

const lanesOf = (accounts: readonly (readonly [isAble: boolean, holder: string | null])[]) =>
  accounts.map(([isAble, holder]): Account => ({ isAble, holder, isLeft: false }))

const ableOf = (lanes: readonly Account[], own: string) =>
  lanes.filter(({ holder, isAble }) => isAble && holder === own).length

const sharesAt = (lanes: readonly Account[], own: string, others: readonly string[]) =>
  sharesOf(lanes, { others, isOwn: ({ holder }) => holder === own })

describe('how gateways divide accounts', () => {
  test('a gateway with accounts without gas gets one that can pay from another', () => {
    const lanes = lanesOf([
      [false, 'a'],
      [false, 'a'],
      [true, 'b'],
      [true, 'b'],
    ])
    settle(lanes, ['a', 'b'])
    expect([ableOf(lanes, 'a'), ableOf(lanes, 'b')]).toEqual([1, 1])
  })

  test('a gateway that joins gets an account when there are more accounts than gateways', () => {
    const lanes = lanesOf([
      [true, 'a'],
      [true, 'a'],
      [true, 'b'],
      [true, 'b'],
    ])
    settle(lanes, ['a', 'b', 'c'])
    expect(['a', 'b', 'c'].map((own) => ableOf(lanes, own)).toSorted()).toEqual([1, 1, 2])
  })

  test('an account that is left is taken, whatever others know of its gas', () => {
    const lanes = lanesOf([
      [true, 'a'],
      [true, null],
      [false, 'b'],
      [false, 'b'],
    ])
    const [, free] = lanes
    if (!free) throw new Error('it is free')
    expect(sharesAt(lanes, 'a', ['b']).takes(free)).toBe(false)
    free.isLeft = true
    expect(sharesAt(lanes, 'a', ['b']).takes(free)).toBe(true)
  })

  test('all accounts are taken and come to rest, and each gateway gets its part', () => {
    const account = fc.tuple(fc.boolean(), fc.constantFrom(null, 'a', 'b', 'c', 'd'))
    const order = fc.uniqueArray(fc.constantFrom('a', 'b', 'c', 'd'), { minLength: 1 })
    fc.assert(
      fc.property(fc.array(account, { maxLength: 9 }), order, (accounts, all) => {
        const lanes = lanesOf(
          accounts.map(([isAble, holder]) => [isAble, all.find((each) => each === holder) ?? null]),
        )
        settle(lanes, all)
        expect(lanes.every(({ holder }) => holder !== null)).toBe(true)
        const able = lanes.filter(({ isAble }) => isAble).length
        for (const own of all) {
          const held = lanes.filter(({ holder }) => holder === own).length
          expect(held).toBeLessThanOrEqual(Math.ceil(lanes.length / all.length))
          expect(ableOf(lanes, own)).toBeLessThanOrEqual(Math.ceil(able / all.length))
          expect(ableOf(lanes, own)).toBeGreaterThanOrEqual(Math.floor(able / all.length))
        }
      }),
      runs(5_000),
    )
  })
})
