import { type Address, createWalletClient, defineChain, type Hex, http, numberToHex } from 'viem'
import { type PrivateKeyAccount, privateKeyToAccount } from 'viem/accounts'
import * as Multicall from '../../src/chain/multicall'
import * as Token from '../../src/chain/token'
import * as Transaction from '../../src/chain/transaction'
import { account } from '../../src/demo/accounts'
import { balanceOf, receiptOf } from '../../src/demo/chains'
import * as Abi from '../../src/protocol/Abi'
import * as Crypto from '../../src/protocol/Crypto'
import * as Permit from '../../src/protocol/Permit'
import * as Transfer from '../../src/protocol/Transfer'
import * as Grant from '../../src/sponsor/Grant'
import { type startNetwork, temporary } from './settlement'
import {
  age,
  batch,
  type Sponsoring,
  setAllowances,
  setTokens,
  signApprove,
  sponsoredNetwork,
  startSponsoring,
  wallets,
  weiOf,
} from './sponsor'

/** Attacks on sponsoring: by many addresses at once, and by one attacker that measures its gain. */

type Net = Awaited<ReturnType<typeof startNetwork>>
export type Wallet = ReturnType<typeof wallets>[number]
type Try = { wallet: Wallet; client: string; isSigned: boolean; honest?: boolean }

export type Figures = {
  addresses: number
  requests: number
  seconds: number
  /** Answers by code; `granted` among them. */
  answers: Readonly<Record<string, number>>
  grants: number
  grantsPerDay: number
  spentWei: bigint
  budgetWei: bigint
  /** Addresses with more than one grant. */
  doubled: number
  /** Answers to the honest wallets, in order. */
  honest: readonly string[]
}

const sponsorKind = { least: 250_000n, dust: 249_999n }
const concurrency = 24

/**
 * Requests grants for `addresses` addresses. Some have had enough for long, unsigned from a hundred
 * networks or signed from four. Others have dust, code, gas, an approval or money that was just
 * moved there. Each request is sent twice concurrently. At intervals an honest wallet sends a
 * signed request. The shipped file has 200 grants a day.
 */
export async function flood(net: Net, addresses: number, grantsPerDay = 200): Promise<Figures> {
  const directory = temporary()
  const budgetWei = 10n ** 16n
  const network = sponsoredNetwork(net.tap.url, { grantsPerDay }, budgetWei)
  const token = network.asset.address
  const all = wallets(addresses, `flood ${addresses}`)
  const take = (percent: number) => all.splice(0, Math.floor((addresses * percent) / 100))
  const [dusty, coded, rich, approved, moved, signing] = [2, 2, 2, 2, 2, 5].map(take)
  const honest = wallets(8, 'honest')
  const of = (list: readonly Wallet[] | undefined) => (list ?? []).map(({ address }) => address)
  await setTokens(net.chain, token, of(dusty), sponsorKind.dust)
  const enough = [coded, rich, approved, signing, all, honest].flatMap(of)
  await setTokens(net.chain, token, enough, sponsorKind.least)
  await batch(
    net.chain,
    of(coded).map((each) => ['anvil_setCode', [each, '0x00']]),
  )
  await batch(
    net.chain,
    of(rich).map((each) => ['anvil_setBalance', [each, '0xde0b6b3a7640000']]),
  )
  await setAllowances(net.chain, token, of(approved), 1n)
  await age(net.chain)
  await setTokens(net.chain, token, of(moved), sponsorKind.least)
  // From here the base fee only falls. If it rose while transactions are in progress, one of them
  // could fall below it.
  await setPrice(net, firstBaseFeeWei)
  net.tap.intercept = withoutTip
  const sponsoring = await startSponsoring([network], directory.path)
  const relayer = account(0).address
  const before = await weiOf(net.chain, relayer)
  try {
    const tries = [dusty, coded, rich, approved, moved].flatMap((list, kind) =>
      (list ?? []).map((wallet, index) => from(wallet, 100 + kind, index, false)),
    )
    // In the order of the largest effect: first the checks, then the unsigned half, then the signed
    // one.
    tries.push(...all.map((wallet, index) => from(wallet, 1, index, false)))
    tries.push(
      ...(signing ?? []).map((wallet, index) =>
        from(wallet, 2, (index % 4) * 254 + (Math.floor(index / 4) % 254), true),
      ),
    )
    const everything = withHonest(
      tries.flatMap((each) => [each, each]),
      honest,
    )
    const startedAt = performance.now()
    const answers = await askAll(sponsoring, network.id, everything)
    const seconds = (performance.now() - startedAt) / 1000
    const rows = sponsoring.rows()
    const given = await Promise.all(rows.map(({ address }) => weiOf(net.chain, address as Address)))
    return {
      addresses,
      requests: everything.length,
      seconds,
      answers: countOf(answers.map(({ code }) => code)),
      grants: rows.length,
      grantsPerDay,
      spentWei: before - (await weiOf(net.chain, relayer)),
      budgetWei,
      doubled: rows.filter((row, index) => String(given[index]) !== String(row.amount_wei)).length,
      honest: answers.flatMap(({ isHonest, code }) => (isHonest ? [code] : [])),
    }
  } finally {
    net.tap.intercept = undefined
    await sponsoring.desk.stop()
    directory.remove()
  }
}

/** Near the highest value that was seen on the chain. */
const firstBaseFeeWei = 300_000_000n

/** The base fee of the next block, which is mined. */
async function setPrice({ chain }: Net, baseFeeWei: bigint): Promise<void> {
  await chain.rpc('anvil_setNextBlockBaseFeePerGas', [numberToHex(baseFeeWei)])
  await chain.rpc('anvil_mine', ['0x1'])
}

/** Suggests no tip, as nodes do where it has no effect. */
const withoutTip = ({ method }: { method: string }) =>
  method === 'eth_maxPriorityFeePerGas' ? { result: '0x0' } : undefined

/** Each /24 has 254 clients; `block` distinguishes the attackers. */
function from(wallet: Wallet, block: number, index: number, isSigned: boolean): Try {
  const network = Math.floor(index / 254)
  return { wallet, client: `${block}.0.${network}.${1 + (index % 254)}`, isSigned }
}

function withHonest(tries: readonly Try[], honest: readonly Wallet[]): Try[] {
  const step = Math.ceil(tries.length / honest.length)
  return honest.flatMap((wallet, index) => [
    ...tries.slice(index * step, (index + 1) * step),
    { wallet, client: `203.0.${index}.1`, isSigned: true, honest: true },
  ])
}

async function askAll(
  sponsoring: Sponsoring,
  network: `eip155:${number}`,
  tries: readonly Try[],
): Promise<{ code: string; isHonest: boolean }[]> {
  const answers: { code: string; isHonest: boolean }[] = []
  const queue = tries.values()
  const worker = async () => {
    for (const { wallet, client, isSigned, honest } of queue) {
      const { address, privateKey } = wallet
      const digest = Crypto.messageDigest(Grant.messageOf(network, address))
      const signature = isSigned && { signature: Crypto.sign(digest, Crypto.bytes(privateKey)) }
      const result = await sponsoring.granting.grant({ address, client, ...signature })
      const code = result.kind === 'granted' ? 'granted' : result.code
      answers.push({ code, isHonest: honest === true })
    }
  }
  await Promise.all(Array.from({ length: concurrency }, worker))
  return answers
}

function countOf(codes: readonly string[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const code of codes) counts[code] = (counts[code] ?? 0) + 1
  return counts
}

export type Gain = {
  baseFeeWei: bigint
  addresses: number
  /** Native coin of all grants. */
  grantedWei: bigint
  /** The attacker's gain between start and end; negative: it lost money. */
  gainWei: bigint
}

/**
 * One attacker with the least balance for each address of a row. When they are sponsored it moves
 * the dollars to a fresh row, in one transaction of its own (EIP-3009 in Multicall3), and collects
 * the grants: the cheapest way. A client has one unused grant at a time, so it approves with each
 * before it requests the next; it has a client for every five. `baseFeeWei` is constant.
 */
export async function farm(net: Net, count: number, baseFeeWei: bigint): Promise<Gain> {
  const directory = temporary()
  const network = sponsoredNetwork(net.tap.url)
  const { chain } = net
  const token = network.asset.address
  const rows = [0, 1].map((row) => wallets(count, `farm ${baseFeeWei} ${row}`))
  const [full = [], empty = []] = rows
  const farmer = account(8).address
  await setTokens(
    chain,
    token,
    full.map(({ address }) => address),
    sponsorKind.least,
  )
  await age(chain)
  const price = () => chain.rpc('anvil_setNextBlockBaseFeePerGas', [numberToHex(baseFeeWei)])
  net.tap.intercept = withoutTip
  await setPrice(net, baseFeeWei)
  let at = Date.now()
  const sponsoring = await startSponsoring([network], directory.path, { now: () => at })
  try {
    let grantedWei = 0n
    for (const [index, { address }] of full.entries()) {
      const client = `10.${Math.floor(index / 5)}.0.1`
      const ask = async () => {
        // It may wait for any time.
        at += 2_000
        await setPrice(net, baseFeeWei)
        await price()
        return sponsoring.granting.grant({ address, client })
      }
      let result = await ask()
      const before = full[index - 1]
      if (result.kind === 'refused' && result.code === 'rate-limited' && before) {
        await price()
        const raw = await signApprove(chain, before.privateKey, token, {
          gas: 60_000n,
          maxFeePerGas: baseFeeWei,
        })
        await receiptOf(chain, (await chain.rpc('eth_sendRawTransaction', [raw])) as Hex)
        result = await ask()
      }
      if (result.kind === 'granted') grantedWei += BigInt(result.body.amountWei)
    }
    const before = await weiOf(chain, farmer)
    await moveOn(net, network, { from: full, to: empty }, baseFeeWei)
    await sweep(net, network, full, baseFeeWei)
    const after = await weiOf(chain, farmer)
    const moved = await Promise.all(empty.map(({ address }) => balanceOf(chain, token, address)))
    if (moved.some((atomic) => atomic !== sponsorKind.least)) throw new Error('not moved on')
    return { baseFeeWei, addresses: count, grantedWei, gainWei: after - before }
  } finally {
    net.tap.intercept = undefined
    await sponsoring.desk.stop()
    directory.remove()
  }
}

export type Delegated = Gain & {
  /** Answers by code; `granted` among them. */
  answers: Readonly<Record<string, number>>
  /** Gas of the sponsor's transfers, each once. */
  transferGas: readonly bigint[]
}

/**
 * An attacker whose addresses delegate to code (EIP-7702). One transaction of its own account
 * delegates `together` addresses that were sponsored, approves with each if `approves`, moves their
 * dollars to fresh addresses and takes their coin. `isEarly`: each delegates between its check and its
 * grant, so that the grant would run code. `fresh`: every four have a network of clients of their own,
 * else all share one. `baseFeeWei` is constant. The cost of the code itself is not counted.
 */
export async function farmDelegated(
  net: Net,
  count: number,
  baseFeeWei: bigint,
  { approves = false, isEarly = false, fresh = true, together = 4 } = {},
): Promise<Delegated> {
  const directory = temporary()
  const network = sponsoredNetwork(net.tap.url)
  const { chain } = net
  const token = network.asset.address
  const seed = `delegated ${baseFeeWei} ${approves} ${isEarly} ${fresh}`
  const [full = [], empty = []] = [0, 1].map((row) => wallets(count, `${seed} ${row}`))
  const farmer = account(8).address
  const code = await placeFarm(chain, token, farmer, approves)
  await setTokens(
    chain,
    token,
    full.map(({ address }) => address),
    sponsorKind.least,
  )
  await age(chain)
  const price = () => chain.rpc('anvil_setNextBlockBaseFeePerGas', [numberToHex(baseFeeWei)])
  net.tap.intercept = withoutTip
  await setPrice(net, baseFeeWei)
  let at = Date.now()
  const sponsoring = await startSponsoring([network], directory.path, { now: () => at })
  const send = async (transaction: Pick<Delegating, 'to' | 'data' | 'authorizationList'>) => {
    await price()
    const hash = await sendDelegating(chain, network.chainId, { ...transaction, baseFeeWei })
    const { status } = await receiptOf(chain, hash)
    if (status !== '0x1') throw new Error('the transaction of the attacker failed')
    await price()
  }
  const delegations = (group: readonly Wallet[]) =>
    Promise.all(
      group.map(({ privateKey }) =>
        privateKeyToAccount(privateKey).signAuthorization({
          chainId: network.chainId,
          address: code.delegate,
          nonce: 0,
        }),
      ),
    )
  try {
    const before = await weiOf(chain, farmer)
    const answers: string[] = []
    const transferGas = new Set<bigint>()
    let grantedWei = 0n
    for (let index = 0; index < count; index += together) {
      const group = full.slice(index, index + together)
      const given: Wallet[] = []
      for (const [offset, wallet] of group.entries()) {
        at += 2_000
        await setPrice(net, baseFeeWei)
        await price()
        if (isEarly)
          net.tap.intercept = atFirstSend(async () =>
            send({ to: farmer, data: '0x', authorizationList: await delegations([wallet]) }),
          )
        const block = fresh ? Math.floor((index + offset) / 4) : 0
        const client = `10.${block}.0.${(offset % 4) + 1}`
        const result = await sponsoring.granting.grant({ address: wallet.address, client })
        net.tap.intercept = withoutTip
        answers.push(result.kind === 'granted' ? 'granted' : result.code)
        const transaction =
          result.kind === 'granted' ? result.body.transaction : result.members?.transaction
        if (transaction !== undefined) {
          const { gasUsed } = await receiptOf(chain, transaction as Hex)
          transferGas.add(BigInt(gasUsed))
        }
        if (result.kind !== 'granted') continue
        given.push(wallet)
        grantedWei += BigInt(result.body.amountWei)
      }
      if (given.length === 0) continue
      const pairs = given.flatMap((wallet) => [
        wallet.address,
        empty[full.indexOf(wallet)]?.address ?? farmer,
      ])
      await send({
        to: code.driver,
        data: `0x${pairs.map((each) => Abi.address(each)).join('')}`,
        authorizationList: isEarly ? [] : await delegations(given),
      })
    }
    const gainWei = (await weiOf(chain, farmer)) - before
    const numbers = { baseFeeWei, addresses: count, grantedWei, gainWei }
    return { ...numbers, answers: countOf(answers), transferGas: [...transferGas] }
  } finally {
    net.tap.intercept = undefined
    await sponsoring.desk.stop()
    directory.remove()
  }
}

/** Runs an action once, before the first transaction that is sent. */
function atFirstSend(act: () => Promise<void>): Net['tap']['intercept'] {
  let isDone = false
  return async (call) => {
    if (call.method.startsWith('eth_sendRawTransaction') && !isDone) {
      isDone = true
      await act()
    }
    return withoutTip(call)
  }
}

type Delegating = {
  to: Address
  data: Hex
  authorizationList: Awaited<ReturnType<PrivateKeyAccount['signAuthorization']>>[]
  baseFeeWei: bigint
}

/** Sends a transaction of the attacker, with delegations of other accounts if there are some. */
function sendDelegating(
  chain: Net['chain'],
  chainId: number,
  { to, data, authorizationList, baseFeeWei }: Delegating,
): Promise<Hex> {
  const client = createWalletClient({
    account: privateKeyToAccount(account(8).privateKey),
    chain: defineChain({
      id: chainId,
      name: 'local',
      nativeCurrency: { name: 'Ether', symbol: 'ETH', decimals: 18 },
      rpcUrls: { default: { http: [chain.url] } },
    }),
    transport: http(chain.url),
  })
  // Two words of data for each address.
  const gas = 200_000n + 200_000n * BigInt(Math.ceil(data.length / 128))
  const fees = { maxFeePerGas: baseFeeWei, maxPriorityFeePerGas: 0n, gas }
  return client.sendTransaction({
    to,
    data,
    ...fees,
    ...(authorizationList.length > 0 && { authorizationList }),
  })
}

/**
 * The code of the attacker, as short as it can be. `delegate` runs for an address that delegates to
 * it: it approves Permit2 if wanted, transfers the least balance to the address in its calldata, and
 * sends all coin to the attacker. `driver` calls each first address of its calldata with the second.
 */
async function placeFarm(
  chain: Net['chain'],
  token: Address,
  boss: Address,
  approves: boolean,
): Promise<{ delegate: Address; driver: Address }> {
  const { data } = Token.approve(token, Permit.permit2Address, 1n)
  const words = [0, 1, 2].map((index) => data.slice(2 + index * 64, 66 + index * 64))
  const store = words.map(
    (word, index) => `7f${word.padEnd(64, '0')}60${(index * 32).toString(16).padStart(2, '0')}52`,
  )
  const callToken = `60006000604460006000${push(token)}5af150`
  const delegate = [
    ...(approves ? [...store, callToken] : []),
    // transfer(address,uint256), with the address of the calldata.
    `63a9059cbb60e01b600052600035600452${`62${sponsorKind.least.toString(16).padStart(6, '0')}`}602452`,
    callToken,
    `600060006000600047${push(boss)}5af100`,
  ].join('')
  const driver = '60005b80361460265780602001356000526000600060206000600085355af1506040016002565b00'
  const at = { delegate: addressOf('delegate'), driver: addressOf('driver') }
  await batch(chain, [
    ['anvil_setCode', [at.delegate, `0x${delegate}`]],
    ['anvil_setCode', [at.driver, `0x${driver}`]],
  ])
  return at
}

const push = (address: Address) => `73${address.slice(2).toLowerCase()}`
const addressOf = (name: string): Address =>
  `0x${Crypto.hex(Crypto.keccak256(`farm ${name}`)).slice(26)}`

/** Sends the remaining native coin of the grants to the attacker. */
async function sweep(
  { chain }: Net,
  { chainId }: ReturnType<typeof sponsoredNetwork>,
  from: readonly Wallet[],
  baseFeeWei: bigint,
): Promise<void> {
  for (const { address, privateKey } of from) {
    const wei = (await weiOf(chain, address)) - 21_000n * baseFeeWei
    if (wei <= 0n) continue
    const count = (await chain.rpc('eth_getTransactionCount', [address, 'latest'])) as Hex
    await chain.rpc('anvil_setNextBlockBaseFeePerGas', [numberToHex(baseFeeWei)])
    const { raw } = Transaction.sign(
      {
        chainId,
        nonce: Number(count),
        maxTipWei: 0n,
        maxFeeWei: baseFeeWei,
        gasLimit: 21_000n,
        to: account(8).address,
        valueWei: wei,
        data: '0x',
      },
      Crypto.bytes(privateKey),
    )
    await receiptOf(chain, (await chain.rpc('eth_sendRawTransaction', [raw])) as Hex)
  }
}

/** Moves the least balance of each address to another one, in one transaction of the attacker. */
export async function moveOn(
  net: Net,
  network: ReturnType<typeof sponsoredNetwork>,
  { from, to }: { from: readonly Wallet[]; to: readonly Wallet[] },
  baseFeeWei: bigint,
): Promise<void> {
  const calls = from.map(({ address, privateKey }, index) => {
    const unsigned = {
      method: 'eip3009' as const,
      network: network.id,
      chainId: network.chainId,
      asset: network.asset.address,
      payer: address,
      payee: to[index]?.address ?? address,
      amountAtomic: sponsorKind.least,
      nonce: Crypto.hex(crypto.getRandomValues(new Uint8Array(32))),
      validAfter: 0n,
      validBefore: BigInt(Math.floor(Date.now() / 1000) + 3600),
    }
    const digest = Transfer.digest(unsigned, network.asset)
    return Transfer.call({
      ...unsigned,
      signature: Crypto.sign(digest, Crypto.bytes(privateKey)),
    })
  })
  const { data } = Multicall.aggregate(calls)
  const { address, privateKey } = account(8)
  const nonce = (await net.chain.rpc('eth_getTransactionCount', [address, 'latest'])) as Hex
  const { raw } = Transaction.sign(
    {
      chainId: network.chainId,
      nonce: Number(nonce),
      maxTipWei: 0n,
      maxFeeWei: baseFeeWei,
      gasLimit: 250_000n * BigInt(from.length) + 250_000n,
      to: Multicall.multicallAddress,
      valueWei: 0n,
      data,
    },
    Crypto.bytes(privateKey),
  )
  await net.chain.rpc('anvil_setNextBlockBaseFeePerGas', [numberToHex(baseFeeWei)])
  await receiptOf(net.chain, (await net.chain.rpc('eth_sendRawTransaction', [raw])) as Hex)
}
