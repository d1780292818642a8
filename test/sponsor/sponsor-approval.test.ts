import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'bun:test'
import { type Hex, keccak256 } from 'viem'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { balanceOf } from '../../src/demo/chains'
import { setAutomine } from '../harness/chains'
import { payee, startNetwork, temporary, until } from '../harness/settlement'
import {
  age,
  baseFeeOf,
  freshWallet,
  type Sponsoring,
  setAllowances,
  setTokens,
  signApprove,
  signPermit2,
  sponsoredNetwork,
  startSponsoring,
  weiOf,
  youngAge,
} from '../harness/sponsor'

let net: Awaited<ReturnType<typeof startNetwork>>
const directory = temporary()
let network: NetworkConfig
let sponsoring: Sponsoring
beforeAll(async () => {
  net = await startNetwork('usdg')
  await age(net.chain, youngAge.minBalanceAgeBlocks)
  network = sponsoredNetwork(net.tap.url, youngAge)
  sponsoring = await startSponsoring([network], directory.path)
})
afterAll(async () => {
  await sponsoring?.desk.stop()
  await net?.stop()
  directory.remove()
})
beforeEach(() => {
  net.tap.intercept = undefined
  net.tap.calls.length = 0
})

type Changes = Parameters<typeof signApprove>[3]

/** A payer that has had USDG for long, a payment of it and the approve that it signed. */
async function payer(options: { atomic?: bigint; isNew?: boolean; approve?: Changes } = {}) {
  const wallet = freshWallet()
  await setTokens(net.chain, network.asset.address, [wallet.address], options.atomic ?? 250_000n)
  if (!options.isNew) await age(net.chain, youngAge.minBalanceAgeBlocks)
  return {
    wallet,
    transfer: signPermit2(network, wallet.privateKey),
    raw: await approveOf(wallet.privateKey, options.approve),
  }
}
const approveOf = (privateKey: Hex, changes?: Changes) =>
  signApprove(net.chain, privateKey, network.asset.address, changes)
const rowOf = (address: string) => sponsoring.rows().filter((row) => row.address === address)
let clients = 0
/** Another client at each use, as payers are. */
const waiting = {
  waitMs: 120_000,
  get client() {
    return `10.6.${++clients}.1`
  },
}
const sends = () => net.tap.calls.filter(({ method }) => method.startsWith('eth_sendRaw')).length

test('an approve is funded with exactly its maximum cost and sent, and the payment follows', async () => {
  const { wallet, transfer, raw } = await payer()
  const { approvals, desk } = sponsoring
  expect(await approvals.check(transfer, raw)).toEqual({ kind: 'good' })
  expect(rowOf(wallet.address)).toEqual([])
  expect(sends()).toBe(0)
  const approved = await approvals.approve(transfer, raw, waiting)
  expect(approved).toMatchObject({ kind: 'approved' })
  const [row] = rowOf(wallet.address)
  const fee = ((await baseFeeOf(net.chain)) * 6n) / 5n
  // The base fee falls with each block here.
  expect(BigInt(String(row?.amount_wei))).toBeGreaterThanOrEqual(70_000n * fee)
  expect(row).toMatchObject({
    kind: 'approval',
    approve_hash: 'transaction' in approved && approved.transaction,
  })
  const before = await balanceOf(net.chain, transfer.asset, payee)
  expect((await desk.pay(transfer)).kind).toBe('confirmed')
  expect(await balanceOf(net.chain, transfer.asset, payee)).toBe(before + 5_000n)
})

test("the payer's own balance is subtracted from the grant", async () => {
  const { wallet, transfer, raw } = await payer()
  await net.chain.rpc('anvil_setBalance', [wallet.address, '0x3e8'])
  expect(await sponsoring.approvals.approve(transfer, raw, waiting)).toMatchObject({
    kind: 'approved',
  })
  const [row] = rowOf(wallet.address)
  const whole = await sponsoring.desk.settlement.rpc(network.id, 'eth_getTransactionByHash', [
    row?.approve_hash,
  ])
  const { gas, maxFeePerGas } = whole as { gas: Hex; maxFeePerGas: Hex }
  expect(String(row?.amount_wei)).toBe(String(BigInt(gas) * BigInt(maxFeePerGas) - 1000n))
})

test('the approve of a payer that can pay for it is sent without a grant', async () => {
  const { wallet, transfer, raw } = await payer()
  await net.chain.rpc('anvil_setBalance', [wallet.address, '0x38d7ea4c68000'])
  expect(await sponsoring.approvals.approve(transfer, raw, waiting)).toMatchObject({
    kind: 'approved',
  })
  expect(rowOf(wallet.address)).toEqual([])
})

test('an approve that is presented repeatedly and concurrently is funded once and serves all payments', async () => {
  const { wallet, transfer, raw } = await payer()
  const first = await Promise.all(
    Array.from({ length: 5 }, () => sponsoring.approvals.approve(transfer, raw, waiting)),
  )
  const again = await sponsoring.approvals.approve(transfer, raw, waiting)
  for (const each of first) expect(each).toEqual(again)
  expect(again).toMatchObject({ kind: 'approved' })
  expect(rowOf(wallet.address)).toHaveLength(1)
})

test('grants by request and by approve share one ledger, in both orders', async () => {
  const one = await payer()
  await sponsoring.approvals.approve(one.transfer, one.raw, waiting)
  const asked = { address: one.wallet.address, client: '10.9.9.9' }
  expect(await sponsoring.granting.grant(asked)).toMatchObject({ code: 'already-sponsored' })

  const two = await payer()
  const granted = await sponsoring.granting.grant({
    address: two.wallet.address,
    client: '10.9.9.9',
  })
  expect(granted.kind).toBe('granted')
  await net.chain.rpc('anvil_setBalance', [two.wallet.address, '0x0'])
  expect(await sponsoring.approvals.check(two.transfer, two.raw)).toMatchObject({
    code: 'erc20_approval_already_sponsored',
  })
  expect(await sponsoring.approvals.approve(two.transfer, two.raw, waiting)).toMatchObject({
    kind: 'refused',
    code: 'erc20_approval_already_sponsored',
  })
})

test('an approve that is not confirmed in time is pending, and continues with a repeated request', async () => {
  const { wallet, transfer, raw } = await payer()
  await setAutomine(net.chain, false)
  try {
    const first = await sponsoring.approvals.approve(transfer, raw, { ...waiting, waitMs: 100 })
    expect(first).toMatchObject({ kind: 'unavailable' })
  } finally {
    await setAutomine(net.chain, true)
  }
  await net.chain.rpc('anvil_mine', ['0x1'])
  await until(async () => (await weiOf(net.chain, wallet.address)) > 0n)
  expect(await sponsoring.approvals.approve(transfer, raw, waiting)).toMatchObject({
    kind: 'approved',
  })
  expect(rowOf(wallet.address)).toHaveLength(1)
})

test('a concurrent request and signed approve make one grant', async () => {
  const { wallet, transfer, raw } = await payer()
  const { granting, approvals } = sponsoring
  const [granted, approved] = await Promise.all([
    granting.grant({ address: wallet.address, client: '10.8.8.8' }),
    approvals.approve(transfer, raw, waiting),
  ])
  // An approve that comes after the grant is sent by it.
  expect([granted.kind === 'granted', approved.kind === 'approved']).toContain(true)
  expect(rowOf(wallet.address)).toHaveLength(1)
})

test('a request and a signed approve that wait for the relayer make one grant', async () => {
  const { granting, approvals } = sponsoring
  // A relayer has room for sixteen.
  const others = await Promise.all(Array.from({ length: 16 }, () => payer()))
  const { wallet, transfer, raw } = await payer()
  await setAutomine(net.chain, false)
  const estimates = () => net.tap.calls.filter(({ method }) => method === 'eth_estimateGas').length
  const full = others.map((each, index) =>
    granting.grant({ address: each.wallet.address, client: `10.5.${index}.1` }),
  )
  try {
    await until(() => others.every((each) => rowOf(each.wallet.address).length === 1))
    const both = Promise.all([
      granting.grant({ address: wallet.address, client: '10.6.6.6' }),
      approvals.approve(transfer, raw, waiting),
    ])
    await until(() => estimates() >= 18)
    // Their results arrive before the next answer of the node.
    await sponsoring.desk.settlement.rpc(network.id, 'eth_chainId', [])
    expect(rowOf(wallet.address)).toEqual([])
    await setAutomine(net.chain, true)
    await net.chain.rpc('anvil_mine', ['0x1'])
    const ends = (await both).map((end) => ('code' in end ? end.code : end.kind))
    const [row] = rowOf(wallet.address)
    expect(ends).toEqual(
      row?.kind === 'grant'
        ? ['granted', 'erc20_approval_already_sponsored']
        : ['already-sponsored', 'approved'],
    )
    expect((await Promise.all(full)).map(({ kind }) => kind)).toEqual(Array(16).fill('granted'))
  } finally {
    await setAutomine(net.chain, true)
  }
})

test("the second half of the day's budget is for requests", async () => {
  const other = temporary()
  const small = sponsoredNetwork(net.tap.url, { ...youngAge, grantsPerDay: 2 })
  const own = await startSponsoring([small], other.path)
  try {
    const first = await payer()
    expect(await own.approvals.approve(first.transfer, first.raw, waiting)).toMatchObject({
      kind: 'approved',
    })
    const { wallet, transfer, raw } = await payer()
    const spent = { kind: 'refused', code: 'erc20_approval_budget_spent' }
    expect(await own.approvals.check(transfer, raw)).toMatchObject(spent)
    expect(await own.approvals.approve(transfer, raw, waiting)).toMatchObject(spent)
    const message = `turnpike gas sponsor ${network.id} ${wallet.address}`
    const signature = await wallet.signMessage({ message })
    const asked = { address: wallet.address, signature, client: '10.7.7.7' }
    expect((await own.granting.grant(asked)).kind).toBe('granted')
  } finally {
    await own.desk.stop()
    other.remove()
  }
})

describe('what is not sponsored', () => {
  const refusal = async (transfer: Parameters<Sponsoring['approvals']['check']>[0], raw: Hex) => {
    const checked = await sponsoring.approvals.check(transfer, raw)
    const approved = await sponsoring.approvals.approve(transfer, raw, waiting)
    expect(approved).toEqual(checked as typeof approved)
    expect(rowOf(transfer.payer)).toEqual([])
    return 'code' in checked ? checked.code : checked.kind
  }

  test('error: a payer with too little or too new a balance, or a contract, is not sponsored', async () => {
    const poor = await payer({ atomic: 249_999n })
    expect(await refusal(poor.transfer, poor.raw)).toBe('erc20_approval_balance_too_low')
    const young = await payer({ isNew: true })
    expect(await refusal(young.transfer, young.raw)).toBe('erc20_approval_balance_too_young')
  })

  test('error: an approve with another gas, fee or nonce is not sponsored', async () => {
    const fee = await baseFeeOf(net.chain)
    const cases: [Changes, string][] = [
      [{ gas: 1_000_000n }, 'erc20_approval_tx_gas_too_high'],
      [{ gas: 30_000n }, 'erc20_approval_tx_gas_too_low'],
      [{ maxFeePerGas: fee * 1000n + 10n ** 11n }, 'erc20_approval_tx_fee_too_high'],
      [{ nonce: 1 }, 'erc20_approval_tx_wrong_nonce'],
    ]
    for (const [approve, code] of cases) {
      const { transfer, raw } = await payer({ approve })
      expect(await refusal(transfer, raw)).toBe(code)
    }
  })

  test('error: a payment that fails for another reason than the allowance is not sponsored', async () => {
    const { wallet, raw } = await payer()
    const { privateKey } = wallet
    const over = signPermit2(network, privateKey, { amountAtomic: 250_001n })
    expect(await refusal(over, raw)).toBe('permit2_insufficient_balance')
    const late = signPermit2(network, privateKey, { validBefore: 1n })
    expect(await refusal(late, raw)).toBe('permit2_deadline_expired')
    const forged = signPermit2(network, privateKey, { signature: `0x${'11'.repeat(65)}` })
    expect(await refusal(forged, raw)).toBe('invalid_permit2_signature')
  })

  test('error: a transaction of another account, or one that the payer has replaced, is not sponsored', async () => {
    const { wallet, transfer } = await payer()
    const mismatched = await approveOf(freshWallet().privateKey)
    expect(await refusal(transfer, mismatched)).toBe('erc20_approval_tx_signer_mismatch')
    expect(await refusal(transfer, '0x02c0')).toBe('erc20_approval_tx_parse_failed')
    // It has used its nonce meanwhile.
    const raw = await approveOf(wallet.privateKey)
    await net.chain.rpc('anvil_setNonce', [wallet.address, '0x1'])
    expect(await refusal(transfer, raw)).toBe('erc20_approval_tx_wrong_nonce')
  })

  test('error: a payer with another pending transaction is not sponsored', async () => {
    const { wallet, transfer, raw } = await payer()
    net.tap.intercept = ({ method, params }) =>
      method === 'eth_getTransactionCount' &&
      params[0] === wallet.address &&
      params[1] === 'pending'
        ? { result: '0x1' }
        : undefined
    expect(await refusal(transfer, raw)).toBe('erc20_approval_tx_wrong_nonce')
  })

  test('error: a payment by EIP-3009, or of a token without sponsoring, is not sponsored', async () => {
    const { wallet, raw } = await payer()
    const other = signPermit2(network, wallet.privateKey, { method: 'eip3009' })
    expect(await refusal(other, raw)).toBe('erc20_approval_not_sponsored')
    const mismatched = signPermit2(network, wallet.privateKey, { asset: account(5).address })
    expect(await refusal(mismatched, raw)).toBe('erc20_approval_not_sponsored')
  })

  test('error: an outage of the node is not counted against the payer', async () => {
    const { transfer, raw } = await payer()
    net.tap.intercept = ({ method }) =>
      method === 'eth_getTransactionCount' ? new Response('', { status: 502 }) : undefined
    expect(await sponsoring.approvals.check(transfer, raw)).toMatchObject({ kind: 'unavailable' })
  })
})

test('many concurrent checks share the node with payments', async () => {
  const { transfer, raw } = await payer()
  let inside = 0
  let most = 0
  net.tap.intercept = async ({ method }) => {
    if (method !== 'eth_estimateGas') return undefined
    most = Math.max(most, ++inside)
    await Bun.sleep(5)
    inside--
    return undefined
  }
  const checks = Array.from({ length: 300 }, () => sponsoring.approvals.check(transfer, raw))
  const kinds = (await Promise.all(checks)).map(({ kind }) => kind)
  expect(kinds.filter((kind) => kind === 'good').length).toBeGreaterThan(200)
  expect(new Set(kinds)).toEqual(new Set(['good', 'unavailable']))
  expect(most).toBeLessThanOrEqual(16)
})

test('an approve that is never included is polled less and less often', async () => {
  const { wallet, transfer, raw } = await payer()
  await net.chain.rpc('anvil_setBalance', [wallet.address, '0x38d7ea4c68000'])
  const hash = keccak256(raw)
  // The node accepted it, and another transaction of the payer displaced it.
  net.tap.intercept = ({ method, params }) =>
    method === 'eth_sendRawTransaction' && params[0] === raw ? { result: hash } : undefined
  expect(
    await sponsoring.approvals.approve(transfer, raw, { ...waiting, waitMs: 1_500 }),
  ).toMatchObject({
    kind: 'unavailable',
  })
  const looks = net.tap.calls.filter(
    ({ method, params }) => method === 'eth_getTransactionReceipt' && params[0] === hash,
  )
  expect(looks.length).toBeGreaterThan(2)
  expect(looks.length).toBeLessThan(9)
})

test('a payer that spends the grant in another way gets no approve and no further grant', async () => {
  const { wallet, transfer, raw } = await payer()
  // Its other transaction comes first: ours is refused or can never be included.
  net.tap.intercept = async ({ method, params }) => {
    if (method !== 'eth_sendRawTransaction' || params[0] !== raw) return undefined
    await net.chain.rpc('anvil_setBalance', [wallet.address, '0x0'])
    await net.chain.rpc('anvil_setNonce', [wallet.address, '0x1'])
    return undefined
  }
  expect(await sponsoring.approvals.approve(transfer, raw, waiting)).toMatchObject({
    kind: 'refused',
    code: 'erc20_approval_broadcast_failed',
  })
  const next = await approveOf(wallet.privateKey, { nonce: 1 })
  expect(await sponsoring.approvals.approve(transfer, next, waiting)).toMatchObject({
    kind: 'refused',
    code: 'erc20_approval_already_sponsored',
  })
  expect(await weiOf(net.chain, wallet.address)).toBe(0n)
  expect((await sponsoring.desk.pay(transfer)).kind).toBe('refused')
})

test('attack: funded approves that never arrive close the sponsoring for their client, its network and all', async () => {
  const own = temporary()
  let at = Date.now()
  const of = await startSponsoring([network], own.path, { now: () => at })
  const { address: token } = network.asset
  const people = await Promise.all(Array.from({ length: 21 }, () => payer({ isNew: true })))
  await age(net.chain, youngAge.minBalanceAgeBlocks)
  // Another account used the nonce of the payer, by a delegation, between the coin and the approve.
  net.tap.intercept = ({ method, params }) =>
    method === 'eth_sendRawTransaction' && people.some(({ raw }) => raw === params[0])
      ? { error: { code: -32000, message: 'nonce too low' } }
      : undefined
  const funded: Hex[] = []
  const ask = async (client: string) => {
    const next = people.shift()
    if (!next) throw new Error('no payer is left')
    const { wallet, transfer } = next
    const raw = await approveOf(wallet.privateKey)
    people.push({ ...next, raw })
    const answer = await of.approvals.approve(transfer, raw, { waitMs: 120_000, client })
    if (answer.kind !== 'refused') throw new Error(answer.kind)
    if (of.rows().some(({ address }) => address === wallet.address)) funded.push(wallet.address)
    return answer.code
  }
  try {
    const lost = 'erc20_approval_broadcast_failed'
    const closed = 'erc20_approval_budget_spent'
    const turns = async (clients: readonly string[]) => {
      const codes: string[] = []
      for (const client of clients) codes.push(await ask(client))
      return codes
    }
    const one = Array<string>(5).fill('192.0.2.1')
    expect(await turns(one)).toEqual([lost, lost, lost, lost, closed])
    expect(await turns(['192.0.2.2', '192.0.2.3', '192.0.2.4', '192.0.2.5', '192.0.2.6'])).toEqual([
      ...Array<string>(4).fill(lost),
      closed,
    ])
    expect(await turns(Array.from({ length: 9 }, (_, n) => `198.51.${n}.1`))).toEqual([
      ...Array<string>(8).fill(lost),
      closed,
    ])
    expect(funded).toHaveLength(16)
    expect(of.logged.filter((line) => line.includes('approves-missing'))).toHaveLength(1)
    // One arrives after all.
    await setAllowances(net.chain, token, funded.slice(0, 1) as Hex[], 1n)
    at += 1_000
    expect(await ask('198.51.100.1')).toBe(lost)
    at += 1_000
    expect(await ask('198.51.100.2')).toBe(closed)
    expect(funded).toHaveLength(17)
  } finally {
    await of.desk.stop()
    own.remove()
  }
})
