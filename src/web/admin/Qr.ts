/**
 * QR codes of short texts: byte mode, error correction M, versions 1 to 9. ISO/IEC 18004; the
 * structure follows https://www.nayuki.io/page/creating-a-qr-code-step-by-step
 */

/** Rows of modules; true is dark. */
export type Modules = readonly (readonly boolean[])[]

/** By version, from 1: error correction codewords of a block, and blocks. */
const eccOf = [10, 16, 26, 18, 24, 16, 18, 22, 22]
const blocksOf = [1, 1, 1, 2, 2, 4, 4, 4, 5]

/** Throws a RangeError for a text of more than 180 bytes. */
export function encode(text: string): Modules {
  const bytes = new TextEncoder().encode(text)
  const version = eccOf.findIndex((_, index) => bytes.length + 2 <= dataLength(index + 1)) + 1
  if (version === 0) throw new RangeError('too long for a QR code')
  const codewords = interleave(dataOf(bytes, version), version)
  const plain = draw(version)
  place(plain, codewords)
  const masked = masks.map((isDark, index) => {
    const rows = plain.modules.map((row, y) =>
      row.map((dark, x) => (plain.isFixed[y]?.[x] === true ? dark : dark !== isDark(x, y))),
    )
    writeFormat(rows, index)
    return rows
  })
  return masked.reduce((best, rows) => (penaltyOf(rows) < penaltyOf(best) ? rows : best))
}

/** Codewords of a version, data and error correction. */
function totalLength(version: number): number {
  let bits = (16 * version + 128) * version + 64
  if (version >= 2) {
    const count = Math.floor(version / 7) + 2
    bits -= (25 * count - 10) * count - 55
  }
  if (version >= 7) bits -= 36
  return Math.floor(bits / 8)
}

function dataLength(version: number): number {
  return totalLength(version) - (eccOf[version - 1] ?? 0) * (blocksOf[version - 1] ?? 0)
}

function dataOf(bytes: Uint8Array, version: number): number[] {
  // Mode 0100 and a count of eight bits, so that all bytes are shifted by four bits.
  const nibbles = [4, bytes.length >> 4, bytes.length & 15]
  for (const byte of bytes) nibbles.push(byte >> 4, byte & 15)
  nibbles.push(0)
  const data: number[] = []
  for (let index = 0; index < nibbles.length; index += 2)
    data.push(((nibbles[index] ?? 0) << 4) | (nibbles[index + 1] ?? 0))
  for (let pad = 0xec; data.length < dataLength(version); pad ^= 0xec ^ 0x11) data.push(pad)
  return data
}

/** Splits the data into blocks, adds error correction, and takes the codewords in turn. */
function interleave(data: readonly number[], version: number): number[] {
  const count = blocksOf[version - 1] ?? 1
  const ecc = eccOf[version - 1] ?? 0
  const short = Math.floor(totalLength(version) / count) - ecc
  const longBlocks = totalLength(version) % count
  const divisor = divisorOf(ecc)
  const blocks: { data: readonly number[]; ecc: readonly number[] }[] = []
  for (let index = 0, at = 0; index < count; index++) {
    const length = short + (index >= count - longBlocks ? 1 : 0)
    const own = data.slice(at, at + length)
    blocks.push({ data: own, ecc: remainderOf(own, divisor) })
    at += length
  }
  const result: number[] = []
  for (const part of ['data', 'ecc'] as const)
    for (let index = 0; index <= Math.max(short, ecc); index++)
      for (const block of blocks) {
        const codeword = block[part][index]
        if (codeword !== undefined) result.push(codeword)
      }
  return result
}

function multiply(x: number, y: number): number {
  let product = 0
  for (let bit = 7; bit >= 0; bit--) {
    product = (product << 1) ^ ((product >>> 7) * 0x11d)
    product ^= ((y >>> bit) & 1) * x
  }
  return product
}

function divisorOf(degree: number): number[] {
  const result = [...Array<number>(degree - 1).fill(0), 1]
  let root = 1
  for (let index = 0; index < degree; index++) {
    for (let at = 0; at < degree; at++)
      result[at] = multiply(result[at] ?? 0, root) ^ (result[at + 1] ?? 0)
    root = multiply(root, 2)
  }
  return result
}

function remainderOf(data: readonly number[], divisor: readonly number[]): number[] {
  const result = divisor.map(() => 0)
  for (const byte of data) {
    const factor = byte ^ (result.shift() ?? 0)
    result.push(0)
    for (const [index, each] of divisor.entries())
      result[index] = (result[index] ?? 0) ^ multiply(each, factor)
  }
  return result
}

type Canvas = { modules: boolean[][]; isFixed: boolean[][] }

/** The parts that do not depend on the data; the format is reserved. */
function draw(version: number): Canvas {
  const size = version * 4 + 17
  const grid = () => Array.from({ length: size }, () => Array<boolean>(size).fill(false))
  const canvas = { modules: grid(), isFixed: grid() }
  const set = (x: number, y: number, dark: boolean) => {
    const [row, fixed] = [canvas.modules[y], canvas.isFixed[y]]
    if (row === undefined || fixed === undefined || x < 0 || x >= size) return
    row[x] = dark
    fixed[x] = true
  }
  for (let index = 0; index < size; index++) {
    set(6, index, index % 2 === 0)
    set(index, 6, index % 2 === 0)
  }
  const nest = (x: number, y: number, radius: number, light: readonly number[]) => {
    for (let dy = -radius; dy <= radius; dy++)
      for (let dx = -radius; dx <= radius; dx++)
        set(x + dx, y + dy, !light.includes(Math.max(Math.abs(dx), Math.abs(dy))))
  }
  for (const [x, y] of [
    [3, 3],
    [size - 4, 3],
    [3, size - 4],
  ] as const)
    nest(x, y, 4, [2, 4])
  const centres = centresOf(version)
  const last = centres.length - 1
  for (const [row, y] of centres.entries())
    for (const [column, x] of centres.entries()) {
      const isCorner = [`0 0`, `0 ${last}`, `${last} 0`].includes(`${row} ${column}`)
      if (!isCorner) nest(x, y, 2, [1])
    }
  for (const [x, y] of formatPlaces(size).flat()) set(x, y, false)
  set(8, size - 8, true)
  if (version >= 7) drawVersion(version, size, set)
  return canvas
}

function drawVersion(
  version: number,
  size: number,
  set: (x: number, y: number, dark: boolean) => void,
): void {
  let remainder = version
  for (let index = 0; index < 12; index++)
    remainder = (remainder << 1) ^ ((remainder >>> 11) * 0x1f25)
  const bits = (version << 12) | remainder
  for (let index = 0; index < 18; index++) {
    const dark = ((bits >>> index) & 1) === 1
    const [far, near] = [size - 11 + (index % 3), Math.floor(index / 3)]
    set(far, near, dark)
    set(near, far, dark)
  }
}

/** Centres of the alignment patterns. */
function centresOf(version: number): number[] {
  if (version === 1) return []
  const count = Math.floor(version / 7) + 2
  const step = Math.ceil((version * 4 + 4) / (count * 2 - 2)) * 2
  const others = Array.from({ length: count - 1 }, (_, index) => version * 4 + 10 - index * step)
  return [6, ...others.reverse()]
}

type Place = readonly [x: number, y: number]

/** Both copies of the 15 bits of the format, the lowest bit first. */
function formatPlaces(size: number): [Place[], Place[]] {
  const first: Place[] = []
  for (let index = 0; index <= 5; index++) first.push([8, index])
  first.push([8, 7], [8, 8], [7, 8])
  for (let index = 9; index < 15; index++) first.push([14 - index, 8])
  const second: Place[] = []
  for (let index = 0; index < 8; index++) second.push([size - 1 - index, 8])
  for (let index = 8; index < 15; index++) second.push([8, size - 15 + index])
  return [first, second]
}

function writeFormat(rows: boolean[][], mask: number): void {
  // The level M has the bits 00.
  let remainder = mask
  for (let index = 0; index < 10; index++)
    remainder = (remainder << 1) ^ ((remainder >>> 9) * 0x537)
  const bits = ((mask << 10) | remainder) ^ 0x5412
  for (const places of formatPlaces(rows.length))
    for (const [index, [x, y]] of places.entries()) {
      const row = rows[y]
      if (row !== undefined) row[x] = ((bits >>> index) & 1) === 1
    }
}

/** Writes the bits in columns of two, upwards and downwards in turn, from the right. */
function place({ modules, isFixed }: Canvas, codewords: readonly number[]): void {
  const size = modules.length
  let bit = 0
  for (let right = size - 1; right >= 1; right -= 2) {
    if (right === 6) right = 5
    for (let step = 0; step < size; step++)
      for (const x of [right, right - 1]) {
        const isUpward = ((right + 1) & 2) === 0
        const y = isUpward ? size - 1 - step : step
        const row = modules[y]
        if (row === undefined || isFixed[y]?.[x] === true) continue
        row[x] = (((codewords[bit >> 3] ?? 0) >>> (7 - (bit & 7))) & 1) === 1
        bit++
      }
  }
}

const masks: readonly ((x: number, y: number) => boolean)[] = [
  (x, y) => (x + y) % 2 === 0,
  (_, y) => y % 2 === 0,
  (x) => x % 3 === 0,
  (x, y) => (x + y) % 3 === 0,
  (x, y) => (Math.floor(x / 3) + Math.floor(y / 2)) % 2 === 0,
  (x, y) => ((x * y) % 2) + ((x * y) % 3) === 0,
  (x, y) => (((x * y) % 2) + ((x * y) % 3)) % 2 === 0,
  (x, y) => (((x + y) % 2) + ((x * y) % 3)) % 2 === 0,
]

/** Long runs and squares of one colour are hard to read. Any mask can be read, so this is enough. */
function penaltyOf(rows: Modules): number {
  let penalty = 0
  const at = (x: number, y: number) => rows[y]?.[x]
  for (let a = 0; a < rows.length; a++)
    for (const read of [(b: number) => at(b, a), (b: number) => at(a, b)])
      for (let b = 1, run = 1; b <= rows.length; b++) {
        if (b < rows.length && read(b) === read(b - 1)) run++
        else {
          if (run >= 5) penalty += run - 2
          run = 1
        }
      }
  for (let y = 1; y < rows.length; y++)
    for (let x = 1; x < rows.length; x++) {
      const square = [at(x - 1, y), at(x, y - 1), at(x - 1, y - 1)]
      if (square.every((each) => each === at(x, y))) penalty += 3
    }
  return penalty
}
