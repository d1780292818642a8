import { describe, expect, test } from 'bun:test'
import { maxUint256 } from 'viem'
import { balanceOf, mine } from '../../src/demo/chains'
import * as Permit from '../../src/protocol/Permit'
import type { ApprovalSponsor } from '../../src/settlement/sponsorship'
import { setAutomine } from '../harness/chains'
import { type Answer, type Body, charging, type Made, makeBody } from '../harness/facilitation'
import { facilitatorAt } from '../harness/facilitators'
import { hasPostgres } from '../harness/postgres'
import { payee, purposeOf, until } from '../harness/settlement'
import { setAllowances, setTokens, signApprove } from '../harness/sponsor'
import {
  authorizeAt,
  namedBy,
  type Payer,
  type Seller,
  type UptoCluster,
  uptoCluster,
} from '../harness/upto-cluster'

/** Several gateways are one facilitator of the scheme `upto`: any of them settles for any relayer. */

const million = 1_000_000n
const used = 'permit2_invalid_nonce'
const codeOf = ({ json }: Answer) => json.invalidReason ?? json.errorReason
const successes = (answers: readonly Answer[]) =>
  answers.filter(({ json }) => json.success === true)

/** A ceiling of 5000 atomic that names the relayer of the first gateway, of which 700 are charged. */
async function prepared(own: UptoCluster, payer: Payer, made: Made = {}) {
  const [one, other] = await own.pair()
  const facilitator = namedBy(one, own.network.id)
  if (facilitator === undefined) throw new Error('the gateway has no relayer')
  const make = async (more: Made = {}) =>
    makeBody(own.network, { scheme: 'upto', from: payer, facilitator, ...made, ...more })
  const body = await make()
  return { one, other, facilitator, make, body, charged: charging(body, 700) }
}

const paidTo = (own: UptoCluster) => balanceOf(own.net.chain, own.network.asset.address, payee)

const withWait = (body: Body, seconds: number): Body => ({
  ...body,
  paymentRequirements: { ...body.paymentRequirements, maxTimeoutSeconds: seconds },
})

/** Whether all authorizations are in one of these states. */
const areAll = (seller: Seller, state: string) => async () => {
  const rows = await seller.sql<{ state: string }>('SELECT state FROM authorizations')
  return rows.length > 0 && rows.every((row) => row.state === state)
}

describe.skipIf(!hasPostgres)('an authorization that names the relayer of another gateway', () => {
  test('it is verified and settled once, by its relayer', async () => {
    await using own = await uptoCluster()
    const { other, facilitator, body, charged } = await prepared(own, await own.payer(million))
    const before = await paidTo(own)
    const { verify, settle } = facilitatorAt(own, other)
    expect((await verify(body)).json.isValid).toBe(true)
    const { status, json } = await settle(charged)
    expect([status, json.success, json.amount]).toEqual([200, true, '700'])
    const sent = await own.net.chain.rpc('eth_getTransactionByHash', [json.transaction])
    expect((sent as { from: string }).from.toLowerCase()).toBe(facilitator.toLowerCase())
    expect(await paidTo(own)).toBe(before + 700n)
    expect(codeOf(await settle(charged))).toBe(used)
    expect(codeOf(await settle(charging(body, 1)))).toBe(used)
    expect(codeOf(await settle(charging(body, 0)))).toBe(used)
    expect(codeOf(await verify(body))).toBe(used)
    expect(await paidTo(own)).toBe(before + 700n)
  })

  test('attack: many calls at both gateways at once get one success and move the money once', async () => {
    await using own = await uptoCluster()
    const { one, other, make } = await prepared(own, await own.payer(million))
    const both = [facilitatorAt(own, one), facilitatorAt(own, other)]
    for (let round = 0; round < 4; round++) {
      const before = await paidTo(own)
      const charged = charging(await make(), 700)
      const asked = [0, 1, 2, 3, 4, 5].map((index) => both[index % 2]?.settle(charged))
      const answers = (await Promise.all(asked)).filter((answer) => answer !== undefined)
      expect(successes(answers)).toHaveLength(1)
      expect(new Set(answers.map(codeOf))).toEqual(new Set([undefined, used]))
      expect(await paidTo(own)).toBe(before + 700n)
    }
  })

  test('the same call with its key at both gateways at once gets the success from both', async () => {
    await using own = await uptoCluster()
    const { one, other, make } = await prepared(own, await own.payer(million))
    const both = [one, other].map((seller) => facilitatorAt(own, seller, { apiKey: 'server' }))
    for (let round = 0; round < 6; round++) {
      const before = await paidTo(own)
      const charged = charging(await make(), 700)
      const answers = await Promise.all(both.map(({ settle }) => settle(charged, `key-${round}`)))
      expect(answers.map(codeOf)).toEqual([undefined, undefined])
      expect(new Set(answers.map(({ json }) => json.transaction)).size).toBe(1)
      const replayed = answers.filter(({ headers }) => headers.has('idempotency-replayed'))
      expect(replayed).toHaveLength(1)
      expect(await paidTo(own)).toBe(before + 700n)
    }
  })

  test('attack: calls with different charges at both gateways at once settle one of them', async () => {
    await using own = await uptoCluster()
    const { one, other, make } = await prepared(own, await own.payer(million))
    const both = [facilitatorAt(own, one), facilitatorAt(own, other)]
    for (let round = 0; round < 4; round++) {
      const before = await paidTo(own)
      const body = await make()
      const asked = both.map(({ settle }, index) => settle(charging(body, 700 + index)))
      const answers = await Promise.all(asked)
      expect(successes(answers)).toHaveLength(1)
      const [success] = successes(answers)
      expect(await paidTo(own)).toBe(before + BigInt(String(success?.json.amount)))
    }
  })

  test('a refusal of the simulation writes nothing', async () => {
    await using own = await uptoCluster()
    const { other, body, charged } = await prepared(own, await own.payer(699n))
    const { verify, settle } = facilitatorAt(own, other)
    const insufficient = 'permit2_insufficient_balance'
    expect(codeOf(await verify(body))).toBe(insufficient)
    expect(codeOf(await settle(charged))).toBe(insufficient)
    expect(await other.sql('SELECT 1 FROM authorizations')).toEqual([])
  })

  test("the sponsor's approve is sent first", async () => {
    await using own = await uptoCluster()
    const payer = await own.payer(million)
    await setAllowances(own.net.chain, own.network.asset.address, [payer.address], 0n)
    const approved: string[] = []
    const sponsor: ApprovalSponsor = {
      check: async () => ({ kind: 'good' }),
      async approve({ payer: owner }) {
        approved.push(owner)
        await setAllowances(own.net.chain, asset, [payer.address], million)
        return { kind: 'approved', transaction: `0x${'1'.repeat(64)}` }
      },
    }
    const { address: asset } = own.network.asset
    const info = {
      ...{ from: payer.address, asset, spender: Permit.permit2Address, version: '1' },
      amount: String(maxUint256),
      signedTransaction: await signApprove(own.net.chain, payer.privateKey, asset),
    }
    const extensions = { erc20ApprovalGasSponsoring: { info, schema: {} } }
    const { other, charged } = await prepared(own, payer, { extensions })
    const { json } = await facilitatorAt(own, other, { sponsor }).settle(charged)
    expect(json).toMatchObject({ success: true, amount: '700' })
    expect(approved).toEqual([payer.address])
  })
})

describe.skipIf(!hasPostgres)('a settlement that waits for another gateway', () => {
  test('a call that ends before it is pending, verified, and gets the one success later', async () => {
    await using own = await uptoCluster()
    const { other, body, charged } = await prepared(own, await own.payer(million))
    const { verify, settle } = facilitatorAt(own, other)
    const before = await paidTo(own)
    await setAutomine(own.net.chain, false)
    const pending = await settle(withWait(charged, 0.5))
    expect(pending.json).toMatchObject({ success: false, status: 'pending' })
    expect((await verify(body)).json.isValid).toBe(true)
    const again = settle(charged)
    await setAutomine(own.net.chain, true)
    await mine(own.net.chain)
    expect((await again).json).toMatchObject({ success: true, amount: '700' })
    expect(codeOf(await settle(charged))).toBe(used)
    expect(await paidTo(own)).toBe(before + 700n)
  })

  test('when that gateway dies, its successor settles, and the same call gets the success', async () => {
    await using own = await uptoCluster({ dies: true })
    const { one, other, make, body, charged } = await prepared(own, await own.payer(million))
    const { verify, settle } = facilitatorAt(own, other, { apiKey: 'resource-server' })
    const before = await paidTo(own)
    await own.kill(one)
    const pending = await settle(withWait(charged, 0.5), 'first')
    expect(pending.json).toMatchObject({ success: false, status: 'pending', transaction: '' })
    expect((await verify(body)).json.isValid).toBe(true)
    expect((await settle(withWait(charged, 0.5), 'first')).json.status).toBe('pending')
    const another = await settle(charging(await make(), 700), 'first')
    expect(another.status).toBe(409)
    await until(areAll(other, 'sent'))
    const settled = await settle(charged, 'first')
    expect(settled.json).toMatchObject({ success: true, amount: '700' })
    expect(settled.headers.get('idempotency-replayed')).toBe(null)
    const replayed = await settle(charged, 'first')
    expect(replayed.json).toEqual(settled.json)
    expect(replayed.headers.get('idempotency-replayed')).toBe('true')
    expect(await paidTo(own)).toBe(before + 700n)
  })

  test('one that fails is given up, refused as used, and never settled', async () => {
    await using own = await uptoCluster({ dies: true })
    const payer = await own.payer(million)
    const { one, other, body, charged } = await prepared(own, payer)
    const { verify, settle } = facilitatorAt(own, other)
    const before = await paidTo(own)
    await own.kill(one)
    expect((await settle(withWait(charged, 0.5))).json.status).toBe('pending')
    const asset = own.network.asset.address
    await setTokens(own.net.chain, asset, [payer.address], 0n)
    await until(areAll(other, 'failed'))
    await setTokens(own.net.chain, asset, [payer.address], million)
    expect(codeOf(await settle(charged))).toBe(used)
    expect(codeOf(await verify(body))).toBe(used)
    expect(await other.sql('SELECT 1 FROM payments')).toEqual([])
    expect(await paidTo(own)).toBe(before)
    // It owed nothing for an answer of ours, so it still gets answers before it pays.
    const ceiling = await own.sign(payer, other, 5_000n)
    expect((await authorizeAt(other, ceiling)).kind).toBe('authorized')
  })

  test('a call that waits is answered when that gateway gives the charge up', async () => {
    await using own = await uptoCluster()
    const { one, other, charged } = await prepared(own, await own.payer(million))
    await one.settlement.stop(0)
    const waiting = facilitatorAt(own, other).settle(charged)
    await until(areAll(other, 'metered'))
    const [row] = await other.sql<{ id: string }>('SELECT id FROM authorizations')
    expect(await one.ledger.authorizations.fail(row?.id ?? '')).toBe(true)
    expect(codeOf(await waiting)).toBe(used)
  })
})

/** A charge of 700 of a payer without money, which a gateway has verified so many blocks ahead of the other. */
async function verifiedAhead(own: UptoCluster, blocks: bigint) {
  const { chain, tap } = own.net
  const payer = await own.payer(0n)
  const [one, other] = await own.pair()
  const head = BigInt((await chain.rpc('eth_blockNumber', [])) as string)
  await other.ledger.authorizations.insert({
    id: other.settlement.createId(),
    transfer: await own.sign(payer, one, 5_000n),
    purpose: purposeOf({ product: 'facilitator' }),
    state: 'metered',
    charge: { amountAtomic: 700n, units: {} },
    delivered: undefined,
    failedAt: undefined,
    receivedAt: Date.now(),
    knownBlock: head + blocks,
    createdAt: Date.now(),
  })
  const digits = payer.address.slice(2).toLowerCase()
  const simulations = () =>
    tap.calls.filter(
      ({ method, params }) => method === 'eth_call' && JSON.stringify(params).includes(digits),
    ).length
  return { payer, other, simulations }
}

describe.skipIf(!hasPostgres)('a gateway whose nodes are behind', () => {
  test('their refusal of what another gateway verified later ends nothing', async () => {
    await using own = await uptoCluster()
    const { chain } = own.net
    const before = await paidTo(own)
    const { payer, other, simulations } = await verifiedAhead(own, 3n)
    await until(() => simulations() > 1)
    expect(await areAll(other, 'metered')()).toBe(true)
    await setTokens(chain, own.network.asset.address, [payer.address], million)
    await mine(chain, 3)
    await until(areAll(other, 'sent'))
    await until(async () => (await paidTo(own)) === before + 700n)
  })

  test('attack: a block that no chain has keeps no charge open', async () => {
    await using own = await uptoCluster()
    const { other } = await verifiedAhead(own, 1_000_000n)
    await until(areAll(other, 'failed'))
  })
})

/** Three gateways. The first one had the named relayer and has died: another one takes it later. */
async function orphaned(own: UptoCluster, payer: Payer) {
  const seller = await prepared(own, payer)
  // Not alone: the database checks what the payer has under way.
  await own.start()
  await own.kill(seller.one)
  return seller
}

describe.skipIf(!hasPostgres)('charges of one payer that wait for another gateway', () => {
  test('attack: ceilings above the balance do not keep each other from being settled', async () => {
    await using own = await uptoCluster({ dies: true })
    const { other, make, charged } = await orphaned(own, await own.payer(1_500n))
    const { settle } = facilitatorAt(own, other, { apiKey: 'resource-server' })
    const before = await paidTo(own)
    const second = charging(await make(), 700)
    await settle(withWait(charged, 0.5), 'first')
    await settle(withWait(second, 0.5), 'second')
    await until(areAll(other, 'sent'))
    expect((await settle(charged, 'first')).json).toMatchObject({ success: true, amount: '700' })
    expect((await settle(second, 'second')).json).toMatchObject({ success: true, amount: '700' })
    expect(await paidTo(own)).toBe(before + 1_400n)
  })

  test('attack: a payer has no more of them than its balance covers', async () => {
    await using own = await uptoCluster()
    const { one, other, make, charged } = await prepared(own, await own.payer(1_399n))
    await one.settlement.stop(0)
    const { settle } = facilitatorAt(own, other)
    const pending = await settle(withWait(charged, 0.5))
    expect(pending.json.status).toBe('pending')
    const second = withWait(charging(await make(), 700), 0.5)
    const refused = await settle(second)
    expect([refused.status, refused.json.detail]).toEqual([
      503,
      expect.stringContaining('under way'),
    ])
    const [row, ...more] = await other.sql<{ id: string }>('SELECT id FROM authorizations')
    expect(more).toEqual([])
    expect(await one.ledger.authorizations.fail(row?.id ?? '')).toBe(true)
    expect((await settle(second)).json.status).toBe('pending')
  })

  test('attack: one that has expired is not verified, although it waits', async () => {
    await using own = await uptoCluster()
    const { one, other, body, charged } = await prepared(own, await own.payer(million))
    await one.settlement.stop(0)
    const { settle, verify } = facilitatorAt(own, other)
    expect((await settle(withWait(charged, 0.5))).json.status).toBe('pending')
    const late = facilitatorAt(own, other, { now: () => Date.now() + 301_000 })
    expect(codeOf(await late.verify(body))).toBe('permit2_deadline_expired')
    expect((await verify(body)).json.isValid).toBe(true)
  })

  test('attack: the key of one is not used for other money, at any charge', async () => {
    await using own = await uptoCluster()
    const payer = await own.payer(million)
    const { one, other, make, charged } = await prepared(own, payer)
    await one.settlement.stop(0)
    // Each has a memory of its own, like a process.
    const facilitator = () => facilitatorAt(own, other, { apiKey: 'resource-server' })
    const pending = await facilitator().settle(withWait(charged, 0.5), 'own')
    expect(pending.json.status).toBe('pending')
    expect((await facilitator().settle(charging(await make(), 0), 'own')).status).toBe(409)
    expect(await other.sql("SELECT 1 FROM authorizations WHERE state = 'void'")).toEqual([])
  })
})

describe.skipIf(!hasPostgres)('a call that finds a settlement of another gateway', () => {
  test('race: one that is sent between two reads is not refused as used', async () => {
    await using own = await uptoCluster()
    const { other, body, charged } = await prepared(own, await own.payer(million))
    await setAutomine(own.net.chain, false)
    const { settlement } = other
    let isEarly = false
    // The payment is written after this read, and before that of the authorization.
    const find: typeof settlement.find = async (money) => {
      const isBefore = isEarly
      isEarly = false
      return isBefore ? undefined : settlement.find(money)
    }
    const { settle, verify } = facilitatorAt(own, { ...other, settlement: { ...settlement, find } })
    expect((await settle(withWait(charged, 0.5))).json.status).toBe('pending')
    await until(areAll(other, 'sent'))
    isEarly = true
    expect((await verify(body)).json.isValid).toBe(true)
    isEarly = true
    expect((await settle(withWait(charged, 0.5))).json.status).toBe('pending')
    await setAutomine(own.net.chain, true)
    await mine(own.net.chain)
    isEarly = true
    expect((await settle(charged)).json).toMatchObject({ success: true, amount: '700' })
  })

  test('error: one that reverted is unavailable here, and not pending', async () => {
    await using own = await uptoCluster()
    const payer = await own.payer(million)
    const { one, other, charged } = await prepared(own, payer)
    const { settle } = facilitatorAt(own, other)
    const asset = own.network.asset.address
    const before = await paidTo(own)
    await setAutomine(own.net.chain, false)
    expect((await settle(withWait(charged, 0.5))).json.status).toBe('pending')
    await until(areAll(other, 'sent'))
    await setTokens(own.net.chain, asset, [payer.address], 0n)
    await setAutomine(own.net.chain, true)
    await mine(own.net.chain)
    await until(async () => {
      const [row] = await other.sql<{ state: string }>('SELECT state FROM payments')
      return row?.state === 'reverted'
    })
    await setTokens(own.net.chain, asset, [payer.address], million)
    expect((await settle(charged)).status).toBe(503)
    expect((await facilitatorAt(own, one).settle(charged)).json.success).toBe(true)
    expect(await paidTo(own)).toBe(before + 700n)
  })

  test('attack: calls that do not wait count for the share of their payee', async () => {
    await using own = await uptoCluster()
    const { other, make, charged } = await prepared(own, await own.payer(million))
    // Less than one settlement costs.
    const { settle } = facilitatorAt(own, other, { gasPerDayWei: 1_000_000n })
    expect((await settle(withWait(charged, 0.001))).json.success).not.toBe(true)
    const spentWei = () => other.ledger.gas.spentOn(own.network.id, 'facilitator', Date.now())
    await until(() => spentWei() > 0n)
    const second = await settle(charging(await make(), 700))
    expect([second.status, second.json.detail]).toEqual([503, expect.stringContaining('one payee')])
    expect((await settle(charged)).json.success).toBe(true)
  })
})
