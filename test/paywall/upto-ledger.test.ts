import { describe, expect, test } from 'bun:test'
import { type State, transitions } from '../../db/Authorization'
import type { Purpose } from '../../db/Payment'
import { account } from '../../src/demo/accounts'
import { execute, mine } from '../../src/demo/chains'
import * as Crypto from '../../src/protocol/Crypto'
import * as Transfer from '../../src/protocol/Transfer'
import { setAutomine } from '../harness/chains'
import { outcomeOf } from '../harness/outcome'
import { type OwnSettlement, ownSettlement } from '../harness/own-settlement'
import { purposeOf, signTransfer, until } from '../harness/settlement'
import { setTokens } from '../harness/sponsor'
import type { Sql } from '../harness/sql'

/** What settlement and its database keep of the scheme `upto`. */

const million = 1_000_000n

/** A ceiling that account 1 signs for the relayer. */
function ceilingOf({ network }: OwnSettlement, ceilingAtomic = 600_000n): Transfer.Transfer {
  const { signature: _, ...bare } = signTransfer(network, {
    method: 'permit2',
    amountAtomic: ceilingAtomic,
  })
  const upto = { ceilingAtomic, facilitator: account(0).address }
  const transfer = { ...bare, upto }
  const digest = Transfer.digest(transfer, network.asset)
  return { ...transfer, signature: Crypto.sign(digest, Crypto.bytes(account(1).privateKey)) }
}

function authorize(
  { fixture: { settlement } }: OwnSettlement,
  transfer: Transfer.Transfer,
  purpose: Partial<Purpose> = {},
) {
  return settlement.authorizations.authorize(transfer, purposeOf(purpose), {
    id: settlement.createId(),
    receivedAt: Date.now(),
    validUntil: Date.now() + 30_000,
  })
}

async function authorized(own: OwnSettlement, transfer = ceilingOf(own)) {
  const outcome = await authorize(own, transfer)
  if (outcome.kind !== 'authorized') throw new Error(outcome.kind)
  return outcome.authorization
}

const cost = { amountAtomic: 700n, units: { input: 7 } }
const busy = { kind: 'unavailable' }

describe('a charge that is decided after its attempt', () => {
  for (const isGood of [true, false])
    test(`a decided charge reserves nothing, ${isGood ? 'when it is paid' : 'and bans its payer when it failed'}`, async () => {
      await using own = await ownSettlement({ settlement: { chargeAttemptMs: 50 } })
      const { authorizations } = own.fixture.settlement
      const { chain } = own.net
      const first = await authorized(own)
      expect(await authorize(own, ceilingOf(own))).toMatchObject(busy)
      await setAutomine(chain, false)
      const charged = await authorizations.charge(first, cost)
      const pending = await authorizations.settleCharge(charged, { waitMs: 120_000 })
      expect(pending.kind).toBe('pending')
      expect(await authorize(own, ceilingOf(own))).toMatchObject(busy)
      if (!isGood) await setTokens(chain, own.network.asset.address, [account(1).address], 5n)
      await mine(chain)
      await setAutomine(chain, true)
      const state = isGood ? 'confirmed' : 'reverted'
      await until(async () => (await own.fixture.settlement.findById(first.id))?.state === state)
      if (isGood) {
        await until(async () => (await authorize(own, ceilingOf(own))).kind === 'authorized')
        return
      }
      await setTokens(chain, own.network.asset.address, [account(1).address], 10n * million)
      const banned = { kind: 'refused', reason: 'unsupported_scheme' }
      await until(async () => {
        const next = await authorize(own, ceilingOf(own, 1_000n))
        return Bun.deepMatch(banned, { ...next })
      })
    })
})

test('attack: money of a payment that is not mined yet is not authorized', async () => {
  await using own = await ownSettlement()
  await setAutomine(own.net.chain, false)
  const transfer = ceilingOf(own, 1_000n)
  const { nonce } = transfer
  await own.begin(signTransfer(own.network, { method: 'permit2', amountAtomic: 1_000n, nonce }))
  const used = { kind: 'refused', reason: 'permit2_invalid_nonce' }
  expect(await authorize(own, transfer)).toMatchObject(used)
  expect(await own.fixture.settlement.authorizations.find(transfer)).toBeUndefined()
  await mine(own.net.chain)
})

describe('a charge', () => {
  test('error: a charge above the ceiling, below 0 or for the second time is not written', async () => {
    await using own = await ownSettlement()
    const { authorizations } = own.fixture.settlement
    const one = await authorized(own)
    for (const amountAtomic of [600_001n, -1n])
      expect(await outcomeOf(authorizations.charge(one, { amountAtomic, units: {} }))).toThrow()
    expect((await authorizations.findById(one.id))?.state).toBe('authorized')
    const charged = await authorizations.charge(one, cost)
    for (const amountAtomic of [0n, 700n, 800n])
      expect(await outcomeOf(authorizations.charge(one, { amountAtomic, units: {} }))).toThrow()
    expect((await authorizations.findById(one.id))?.charge).toEqual(cost)
    const outcomes = await Promise.all(
      Array.from({ length: 5 }, () => authorizations.settleCharge(charged, { waitMs: 120_000 })),
    )
    expect(outcomes.map(({ kind }) => kind)).toEqual(Array(5).fill('confirmed'))
    expect(await own.paid()).toBe(700n)
    expect((await authorizations.settleCharge(charged, { waitMs: 120_000 })).kind).toBe('confirmed')
    expect(await own.paid()).toBe(700n)
  })

  test('attack: a payer whose charge fails during the simulation of another ceiling does not get it', async () => {
    await using own = await ownSettlement()
    const first = await authorized(own, ceilingOf(own, 1_000n))
    own.net.tap.intercept = async ({ method }) => {
      if (method === 'eth_call')
        await own.fixture.ledger.authorizations.markFailed(first.id, Date.now())
      return undefined
    }
    const refused = { kind: 'refused', reason: 'unsupported_scheme' }
    expect(await authorize(own, ceilingOf(own, 1_000n))).toMatchObject(refused)
  })

  test('error: a ceiling that cannot be written reserves nothing', async () => {
    await using own = await ownSettlement()
    const { authorizations } = own.fixture.ledger
    const { insert } = authorizations
    Object.assign(authorizations, { insert: () => Promise.reject(new Error('the disk is away')) })
    expect(await authorize(own, ceilingOf(own))).toMatchObject(busy)
    Object.assign(authorizations, { insert })
    // One payer may have one such ceiling open.
    expect((await authorize(own, ceilingOf(own))).kind).toBe('authorized')
  })

  test('error: an authorization that is void is never settled', async () => {
    await using own = await ownSettlement()
    const { authorizations } = own.fixture.settlement
    const one = await authorized(own)
    const nothing = { amountAtomic: 0n, units: {} }
    const voided = await authorizations.charge(one, nothing)
    expect(voided.state).toBe('void')
    const forced = { ...voided, charge: cost }
    expect((await authorizations.settleCharge(forced, { waitMs: 120_000 })).kind).not.toBe(
      'confirmed',
    )
    expect(await own.paid()).toBe(0n)
  })

  test('error: a charge whose nonce its payer invalidated is given up, and bans the payer', async () => {
    await using own = await ownSettlement()
    const { authorizations } = own.fixture.settlement
    const transfer = ceilingOf(own)
    const one = await authorized(own, transfer)
    const nonce = BigInt(transfer.nonce)
    const word = (nonce >> 8n).toString(16).padStart(64, '0')
    const mask = (1n << (nonce & 0xffn)).toString(16).padStart(64, '0')
    await execute(own.net.chain, [
      {
        from: account(1).address,
        to: '0x000000000022D473030F116dDEE9F6B43aC78BA3',
        // invalidateUnorderedNonces(uint256,uint256)
        data: `0x3ff9dcb1${word}${mask}`,
      },
    ])
    const charged = await authorizations.charge(one, cost)
    const outcome = await authorizations.settleCharge(charged, { waitMs: 120_000 })
    expect(outcome).toMatchObject({ reason: 'permit2_invalid_nonce' })
    expect((await authorizations.findById(one.id))?.state).toBe('failed')
    expect(await authorize(own, ceilingOf(own))).toMatchObject({ reason: 'unsupported_scheme' })
    expect(await own.paid()).toBe(0n)
  })
})

/** A row of each state, and what the columns must be. */
const shapes: Readonly<Record<State, string>> = {
  authorized: 'charge_atomic = NULL, units = NULL',
  metered: "charge_atomic = '700', units = '{}'",
  sent: "charge_atomic = '700', units = '{}'",
  void: "charge_atomic = '0', units = '{}'",
  failed: "charge_atomic = '700', units = '{}'",
}
const states = Object.keys(transitions) as State[]

/** Copies a row, with another id and nonce. */
function copyRow(
  sql: Sql,
  table: 'authorizations' | 'payments',
  from: string,
  { id, nonce }: { id: string; nonce: string },
) {
  const names = Object.keys(sql.query<object>(`SELECT * FROM ${table} LIMIT 1`).get() ?? {})
  const values = names.map((name) => (name === 'id' || name === 'nonce' ? '?' : name))
  const own = names.flatMap((name) => (name === 'id' ? id : name === 'nonce' ? nonce : []))
  sql.run(`INSERT INTO ${table} (${names}) SELECT ${values} FROM ${table} WHERE id = ?`, [
    ...own,
    from,
  ])
}

describe('the table of states', () => {
  test('the database refuses exactly the transitions that the code does not have', async () => {
    await using own = await ownSettlement()
    const { sql } = own.fixture
    const before = await authorized(own, ceilingOf(own, 1_000n))
    for (const from of states)
      for (const to of states) {
        if (from === to) continue
        const id = `${from} ${to}`
        const nonce = Crypto.hex(Crypto.keccak256(id))
        copyRow(sql, 'authorizations', before.id, { id, nonce })
        const path: readonly State[] =
          from === 'sent' || from === 'failed' ? ['metered', from] : [from]
        const change = (state: State) =>
          sql.run(`UPDATE authorizations SET state = ?, ${shapes[state]} WHERE id = ?`, [state, id])
        if (from !== 'authorized') for (const state of path) change(state)
        const attempt = () => change(to)
        if (transitions[from].includes(to)) expect(attempt, id).not.toThrow()
        else expect(attempt, id).toThrow()
      }
  })

  const impossible: readonly (readonly [string, string])[] = [
    ['a charge above the ceiling', "state = 'metered', charge_atomic = '1001', units = '{}'"],
    ['a charge with more digits', "state = 'metered', charge_atomic = '10000', units = '{}'"],
    ['a negative charge', "state = 'metered', charge_atomic = '-1', units = '{}'"],
    ['a fractional charge', "state = 'metered', charge_atomic = '1.5', units = '{}'"],
    ['metered without a charge', "state = 'metered'"],
    ['metered for nothing', "state = 'metered', charge_atomic = '0', units = '{}'"],
    ['void with a charge', "state = 'void', charge_atomic = '5', units = '{}'"],
    ['a charge before it is metered', "charge_atomic = '5', units = '{}'"],
    ['units that are no JSON', "state = 'metered', charge_atomic = '5', units = '{'"],
    ['delivered while authorized', 'is_delivered = true, upstream_status = 200'],
    ['another ceiling', "ceiling_atomic = '2000'"],
    ['another payee', `payee = '${account(9).address}'`],
    ['another nonce', `nonce = '0x${'1'.repeat(64)}'`],
  ]
  test('error: the database refuses rows that cannot be, and what was agreed does not change', async () => {
    await using own = await ownSettlement()
    const { sql } = own.fixture
    const { id } = await authorized(own, ceilingOf(own, 1_000n))
    for (const [name, set] of impossible)
      expect(() => sql.run(`UPDATE authorizations SET ${set} WHERE id = '${id}'`), name).toThrow()
    sql.run(
      `UPDATE authorizations SET state = 'metered', charge_atomic = '900', units = '{}' WHERE id = '${id}'`,
    )
    const raise = `UPDATE authorizations SET charge_atomic = '901' WHERE id = '${id}'`
    expect(() => sql.run(raise)).toThrow()
    expect(() => sql.run(`DELETE FROM authorizations WHERE id = '${id}'`)).toThrow()
  })

  test('error: a payment settles an authorization only when it is sent, with its charge', async () => {
    await using own = await ownSettlement()
    const { authorizations } = own.fixture.settlement
    const transfer = ceilingOf(own, 1_000n)
    const one = await authorized(own, transfer)
    const charged = await authorizations.charge(one, cost)
    expect((await authorizations.settleCharge(charged, { waitMs: 20_000 })).kind).toBe('confirmed')
    const other = await authorized(own, ceilingOf(own, 1_000n))
    const { sql } = own.fixture
    const copy = (id: string, nonce: string) => () =>
      copyRow(sql, 'payments', one.id, { id, nonce })
    const { nonce } = other.transfer
    expect(copy('another', nonce)).toThrow('money-authorized')
    expect(copy(other.id, nonce)).toThrow('money-authorized')
    await authorizations.charge(other, { amountAtomic: 699n, units: {} })
    expect(copy(other.id, nonce)).toThrow('money-authorized')
    sql.run(`UPDATE authorizations SET state = 'sent' WHERE id = '${other.id}'`)
    // Another charge than the payment has.
    expect(copy(other.id, nonce)).toThrow('money-authorized')
  })
})
