import { format, type Options, parseConfig } from '../../src/config/merchants'

/** A wallet that no rule refuses. */
export const payout = '0x1111111111111111111111111111111111111111'

/** A name in the environment, as the file writes it. */
export const named = (name: string) => `\${${name}}`

/** A desk on a network, with one token. */
export const stockTable = (network: string) => `
[stock]
network = "${network}"
factory = "0x1f7d7550B1b028f7571E69A784071F0205FD2EfA"
router = "0xCaf681a66D020601342297493863E78C959E5cb2"
quoter = "0x33e885eD0Ec9bF04EcfB19341582aADCb4c8A9E7"
registry = "0xe10b6f6B275de231345c20D14Ab812db62151b00"
[[stock.tokens]]
symbol = "NVDA"
name = "NVIDIA"
address = "0xd0601CE157Db5bdC3162BbaC2a2C8aF5320D9EEC"
pool = "0xd4EB21209C4D6093f80B5b84f5C45cc093EA14a3"
fee = 500
`

/** A small file without faults. */
export const small = `
[service]
payout = "${named('PAYOUT')}"
listen = "127.0.0.1:4020"
base_url = "https://pay.example.com"

[networks."eip155:8453"]
name = "Base"
rpc_urls = ["https://rpc.example.com"]
[networks."eip155:8453".asset]
symbol = "USDC"
address = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
transfer = ["eip3009"]
eip712 = { name = "USD Coin", version = "2" }

[networks."eip155:84532"]
name = "Base Sepolia"
testnet = true
rpc_urls = [
  "https://sepolia.example.com",
]
[networks."eip155:84532".asset]
symbol = "USDC"
address = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"
eip712 = { name = "USDC", version = "2" }

[[merchants]]
slug = "one"
upstream = "https://one.example.com/base"
headers = { "X-Key" = "key-${named('ONE_KEY')}" }
[[merchants.routes]]
path = "/a"
price = "0.005"
[[merchants.routes]]
path = "/a/b"
methods = ["GET", "POST"]
price = "0.1"
tail = "none"

[[merchants]]
slug = "two"
upstream = "https://two.example.com"
[[merchants.routes]]
path = "/c"
price = "1"
[[merchants.routes.params]]
name = "q"
${stockTable('eip155:8453')}
[facilitator]
pay_to = "own"
`
/** Sets every name that the small file uses. */
export const env = { PAYOUT: payout, ONE_KEY: 'k3y-of-one' }

/** Parses as `m.toml`. */
export function read(text: string, options: Partial<Options> = {}) {
  return parseConfig(text, { file: 'm.toml', env, ...options })
}

/** The configuration of a text, which must have no fault. */
export function configOf(text: string, options: Partial<Options> = {}) {
  const { config, faults } = read(text, options)
  if (!config) throw new Error(faults.map(format).join('\n'))
  return config
}

/** The faults as they are printed. */
export function linesOf(text: string, options: Partial<Options> = {}): string[] {
  return read(text, options).faults.map(format)
}

/** The file with one text replaced, which must occur exactly once. */
export function edited(from: string, to: string): string {
  if (small.split(from).length !== 2) throw new Error(`not exactly once in the file: ${from}`)
  return small.replace(from, () => to)
}

/** Number of the line that contains a text. */
export function lineWith(text: string, part: string): number {
  return text.slice(0, text.indexOf(part)).split('\n').length
}
