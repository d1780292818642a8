import type { Address } from 'viem'
import type { Config, NetworkConfig } from './Config'
import { keyOf, type Path } from './lines'
import { report, type Source } from './reader'
import * as V from './values'

/** Accounts of anvil's and hardhat's mnemonic "test test ... junk": their keys are public. */
export const developmentAccounts: readonly Address[] = [
  '0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266',
  '0x70997970C51812dc3A010C7d01b50e0d17dc79C8',
  '0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC',
  '0x90F79bf6EB2c4f870365E785982E1f101E93b906',
  '0x15d34AAf54267DB7D7c367839AAf71A00a2C6A65',
  '0x9965507D1a55bcC2695C58ba16FB37d819B0A4dc',
  '0x976EA74026E726554dB657fA54763abd0C3a0aa9',
  '0x14dC79964da2C08b23698B3D3cc7Ca32193d9955',
  '0x23618e81E3f5cdF7f54C3d65f7FBc0aBf5B21E8f',
  '0xa0Ee7A142d267C1f36714E4a8F75612F20a79720',
  '0xBcd4042DE499D14e55001CcbB24a551F3b954096',
  '0x71bE63f3384f5fb98995898A86B02Fb2426c5788',
  '0xFABB0ac9d68B0B445fB7357272Ff202C5651694a',
  '0x1CBd3b2770909D4e10f157cABC84C7264073C9Ec',
  '0xdF3e18d64BC6A983f673Ab319CCaE4f1a57C7097',
  '0xcd3B766CCDd6AE721141F452C550Ca635964ce71',
  '0x2546BcD3c84621e976D8185a91A922aE77ECEc30',
  '0xbDA5747bFD65F08deb54cb465eB87D40e51B197E',
  '0xdD2FD4581271e230360230F9337D5c0430Bf44C0',
  '0x8626f6940E2eb28930eFb4CeF49B2d1F2C9C1199',
]

/** Chain id of anvil and hardhat. A network that has another one pauses. */
const developmentChain = 31_337

/** Contracts of the transfer methods and of batching: money sent there is lost. */
const protocolContracts: readonly Address[] = [
  '0x000000000022D473030F116dDEE9F6B43aC78BA3',
  '0x402085c248EeA27D92E8b30b2C58ed07f9E20001',
  '0xcA11bde05977b3631167028862bE2a173976CA11',
  '0x4020074e9dF2ce1deE5A9C1b5c3f541D02a10003',
  '0x4020806089470a89826cB9fB1f4059150b550004',
  '0x4020425FAf3B746C082C2f942b4E5159887B0005',
]

const burnAddresses: readonly Address[] = [
  '0x000000000000000000000000000000000000dEaD',
  '0xdEAD000000000000000042069420694206942069',
  '0xFFfFfFffFFfffFFfFFfFFFFFffFFFffffFfFFFfF',
]

/** The wallet in the samples of the documents, which readers copy. */
export const documentedPayout: Address = '0x5C1F3a86D2E04b7795A1c0De34f6B8927E1d4a03'

type Parsed = Omit<Config, 'hash'>

/** Checks that need the whole file. */
export function crossCheck(source: Source, config: Parsed, relayers: readonly Address[]): void {
  checkPayouts(source, config, relayers)
  checkRelayers(source, config, relayers)
  checkBuiltins(source, config)
  checkPairs(source, config)
}

/** Refuses payouts that lose or give away money, except on local networks. */
function checkPayouts(source: Source, config: Parsed, relayers: readonly Address[]): void {
  const networks = config.networks.filter((network) => !isLocal(network))
  const real = new Set(networks.map(({ id }) => id))
  const refuse = (path: Path, payout: Address): void => {
    const reason = payoutFault(payout, config, relayers)
    if (reason) report(source, path, `${path.at(-1) === 'payout' ? 'payout' : 'pay_to'} ${reason}`)
  }
  config.merchants.forEach((merchant, i) => {
    if (!merchant.networks.some((id) => real.has(id))) return
    const own: Path = ['merchants', i, 'payout']
    // Look up the line only for a fault.
    if (payoutFault(merchant.payout, config, relayers) === undefined) return
    const path: Path = source.lines.has(keyOf(own)) ? own : ['service', 'payout']
    if (!source.faults.has(keyOf(path))) refuse(path, merchant.payout)
  })
  if (typeof config.facilitator.payTo === 'string' || real.size === 0) return
  config.facilitator.payTo.forEach((payTo, i) => {
    refuse(['facilitator', 'pay_to', i], payTo)
  })
}

/** Refuses public keys of ours, except on local networks: the demo, and tests. */
function checkRelayers(source: Source, config: Parsed, relayers: readonly Address[]): void {
  const real = config.networks.find((network) => !isLocal(network))
  const known = relayers.find((address) => developmentAccounts.includes(address))
  if (real === undefined || known === undefined) return
  const message =
    `RELAYER_KEYS, DESK_KEY, REFUND_KEY or RECEIVER_AUTHORIZER_KEY has the public test key of ${known}: ` +
    `anyone can take its coins on ${real.name}. Unset it, or set your own (openssl rand -hex 32)`
  report(source, ['networks', real.id], message)
}

/** Reports merchants that promise refunds, without an account that pays them. */
export function reportUnpaidRefunds(source: Source, { merchants }: Parsed): void {
  merchants.forEach(({ refund }, i) => {
    if (refund !== 'undelivered') return
    const message =
      'refund = "undelivered" needs REFUND_KEY, the key of the account that pays it: set it (openssl ' +
      'rand -hex 32), or write "by-hand"'
    report(source, ['merchants', i, 'refund'], message)
  })
}

/** Whether every RPC is on this machine, or the chain is the one of anvil and hardhat. */
function isLocal(network: NetworkConfig): boolean {
  // Its node may be another container.
  if (network.chainId === developmentChain) return true
  const { rpcUrls, wsUrl } = network
  const urls = [...rpcUrls, ...(wsUrl ? [wsUrl] : [])].map((text) => URL.parse(text))
  return rpcUrls.length > 0 && urls.every((url) => url !== null && V.isLoopback(url))
}

function payoutFault(
  payout: Address,
  config: Parsed,
  relayers: readonly Address[],
): string | undefined {
  if (payout === V.zeroAddress) return 'is the zero address: write a wallet of yours'
  if (burnAddresses.includes(payout)) return 'is a burn address: write a wallet of yours'
  if (tokensOf(config).includes(payout)) return 'is a token contract: write a wallet of yours'
  if (contractsOf(config).includes(payout))
    return 'is a contract, not a wallet: write a wallet of yours'
  if (payout === documentedPayout) return 'is the example of the documents: write a wallet of yours'
  if (relayers.includes(payout))
    return 'is a relayer of this gateway, its desk, or its account of refunds or channels: write another wallet'
  if (developmentAccounts.includes(payout))
    return 'is a public development account that anyone can empty: write a wallet of yours'
  return undefined
}

function tokensOf(config: Parsed): readonly Address[] {
  const assets = config.networks.map((network) => network.asset.address)
  return [...assets, ...(config.stock?.tokens.map((token) => token.address) ?? [])]
}

function contractsOf({ stock }: Parsed): readonly Address[] {
  if (!stock) return protocolContracts
  const pools = stock.tokens.flatMap((token) => [token.pool, ...(token.feed ? [token.feed] : [])])
  const { factory, router, quoter, registry } = stock
  return [...protocolContracts, ...pools, factory, router, quoter, registry]
}

function checkBuiltins(source: Source, config: Parsed): void {
  config.merchants.forEach((merchant, i) => {
    if (merchant.builtin !== 'chain-stocks' || config.stock) return
    const message = 'builtin chain-stocks reads the tokens of [stock], which is not in the file'
    report(source, ['merchants', i, 'builtin'], message)
  })
}

/** Reports two networks of one chain, and stock tokens that are the asset itself. */
function checkPairs(source: Source, config: Parsed): void {
  const { stock } = config
  const { address: asset, transfer } =
    config.networks.find((network) => network.id === stock?.network)?.asset ?? {}
  if (transfer?.length && !transfer.includes('eip3009')) {
    const message = 'network needs an asset with "eip3009" in transfer: swaps and refunds spend it'
    report(source, ['stock', 'network'], message)
  }
  stock?.tokens.forEach((token, i) => {
    if (token.address === asset)
      report(source, ['stock', 'tokens', i, 'address'], 'address is the asset that pays for stock')
    if (token.pool === token.address)
      report(source, ['stock', 'tokens', i, 'pool'], 'pool is the address of the token itself')
  })
}
