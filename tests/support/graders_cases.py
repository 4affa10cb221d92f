"""Cases made to fool a grader of mathematics, in both directions: ``gold || answer``, one a line."""

# ruff: noqa: RUF001 (signs that look alike are among the cases)
from __future__ import annotations


def _read(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.strip().splitlines() if not line.startswith("# ")]
    pairs = [tuple(line.split(" || ")) for line in lines]
    assert all(len(pair) == 2 for pair in pairs) and len(set(pairs)) == len(pairs)
    return pairs  # type: ignore[return-value]


RIGHT = _read(r"""
# numbers
025 || 25
25 || 025
142.0 || 142
-4.0 || -4
+2 || 2
0 || -0
.35625 || 0.35625
0.10 || .1
24.310 || 24.31
1{,}234 || 1234
10,\!080 || 10080
11,\! 111,\! 111,\! 100 || 11111111100
58,500 || 58500
58500 || 58,500
$782 || 782
\$36 || 36
\$32,\!348 || 32348
1 000 000 || 1000000
4.5e33 || 4.5 \times 10^{33}
4.5 \times 10^{33} || 4.5e33
1e-5 || 10^{-5}
1.70e4 || 17000
3.61e-10 || 3.61 \cdot 10^{-10}
6e13 || 6E+13
2.7778 \times 10^{-6} || 2.7778e-6
1.5 \times 10^{8} || 150000000
0.0000672 || 6.72e-5
10^{100} || 10^{100}
\frac{1}{2} || 0.5
\frac{1}{2} || \dfrac12
1/2 || \tfrac{1}{2}
\frac{3}{4} || 3/4
\frac 59 || \frac{10}{18}
-\frac{1}{2} || \frac{-1}{2}
-\frac{1}{2} || \frac{1}{-2}
-1/2 || -0.5
\frac{1}{3} || 0.333333
\frac{2}{3} || 0.6666667
\sqrt{17} || 4.123105625617661
\pi || 3.14159265
0.3 || 0.30000000000000004
1\frac{4}{5} || \frac{9}{5}
137 \frac{1}{2} || 137.5
1.8 || 1\frac{4}{5}
1 4/5 || 9/5
-1\frac{1}{2} || -1.5
\frac{1}{2} || ½
−3 || -3
3 || ３
10! || 3628800
# percent, degrees, units
50 || 50\%
0.5 || 50\%
50\% || 50
62.5% || 0.625
17.5% || 17.5
1.08\% || 1.08 \text{ percent}
28\% || 28 percent
\frac{100}{3}\% || \frac{100}{3}
90^\circ || 90
90 || 90^{\circ}
30^\circ || 30 \text{ degrees}
\frac{270}7\text{ degrees} || \frac{270}{7}
145^\circ || 145°
10\text{ cm} || 10
10 || 10\,\mathrm{cm}
15\mbox{ cm}^2 || 15
864 \mbox{ inches}^2 || 864
864 || 864 \text{ square inches}
864 \mbox{ inches}^2 || 864\text{ square inches}
5.4 \text{ cents} || 5.4
12 \text{ km/h} || 12
8 || 8 \text{ apples}
20\text{ miles} || 20 miles
0.003^{\prime \prime} || 0.003
0.003^{\prime \prime} || 0.003''
y^{\prime}+ry-rx(t)=0 || y' + ry - rx(t) = 0
15000 \text{ kcal m}^{-2} \text{yr}^{-1} || 15000
1950^\circ C || 1950
1950^\circ C || 1950 \text{ degrees Celsius}
8 \text{ apples} || 8 \text{ red apples}
6 \text{ PM} || 6 \text{ p.m.}
3.5 \text{ kJ/mol} || 3.5 \text{ kJ mol}^{-1}
20 \text{ mph} || 20 \text{ miles per hour}
9.8 \text{ m/s}^2 || 9.8 \text{ meters per second squared}
6 || 6\%\%\%
# words that make another number
5000000 || 5 million
2.5 \text{ million dollars} || 2500000
12 dozen || 144
\frac{2}{3} || 2 thirds
3 \text{ times} || 3
5 factorial || 5 \text{ factorial}
480 + 480\sqrt{3}\text{ feet} || 480(1+\sqrt3)
6.43 \times 10^{16} \text{ cm}^{-3} || 6.43e16
# algebra
p - q || -q+p
x^2+2x+1 || (x+1)^2
3\sqrt{13} || \sqrt{117}
11\sqrt2 || 11\sqrt{2}
\frac{1}{\sqrt{2}} || \frac{\sqrt{2}}{2}
6 - 5i || -5i+6
1+2i || 1 + 2 i
1 + i\sqrt{3} || 1+\sqrt{3}i
\tan^2(y)+1 || \sec^2(y)
2 \sin b \cos a || 2\cos a\sin b
\frac{e^{at}-e^{-at}}{2a} || \frac{1}{2a}(e^{at}-e^{-at})
\frac{2\pi}{\omega} || 2\pi/\omega
2^{1009} || 2 \cdot 2^{1008}
\frac{100!}{2^{50}} || 100!/2^{50}
\binom{2n}{n} || \dbinom{2n}{n}
n^{2}-n+1 || n(n-1)+1
8\sqrt{1003} || 2\sqrt{16048}
18+2\pi || 2(9+\pi)
\cot x || \frac{1}{\tan x}
\frac{\sqrt{3}}{3} \approx 0.577 || \frac{\sqrt{3}}{3}
4 || \left| 3 - 7 \right| = 4
6*7 || 42
10^9 - 1 || 999999999
\sqrt {3} || \sqrt3
\frac{x+2}{7} || \frac{x}{7}+\frac{2}{7}
\sqrt[3]{2} || 2^{1/3}
2^6 3^5 5^4 || 2^6 * 3^5 * 5^4
X_{d}=125-1.25 P || X_d = 125 - \frac{5P}{4}
\ln 2 + i\frac{\pi}{3} || \ln(2)+\frac{\pi i}{3}
\frac{1}{2}(e^{at}+e^{-at}) || \cosh(at)
\pi R^2 - \pi r^2 || \pi(R^2-r^2)
I(0)e^{-\frac{t}{RC}} || I(0) e^{-t/(RC)}
\frac{e^{2it}}{2+2i} + Ce^{-2t} || C e^{-2t} + e^{2it}/(2+2i)
\sqrt{1-\frac{2r}{R}} || \sqrt{\frac{R-2r}{R}}
x^{2} || x²
2\sqrt{3} || 2√3
M_{1} || M_1
\frac{1}{4p^2} || 1/(4p^2)
# names, equations, relations
5 || x=5
x=5 || 5
X = 6 || 6
k=1 || k = 1
f(x)=2 x || 2x
y = 2x + 3 || f(x) = 2x+3
\angle ABC = 30 || 30^\circ
|AB|=1 || 1
7:32 || S_1:S = 7:32
3x-y+13=0 || y=3x+13
2x+4y-3=0 || y=-\frac{1}{2}x+\frac{3}{4}
x \ge 3 || [3,\infty)
[3,\infty) || x \geq 3
x<1 || 1>x
120 < n \leq 130 || n \in (120, 130]
x \in [-2,7] || [-2,7]
-2 \le x \le 7 || [-2, 7]
k \geqslant 2 || k>=2
(-\infty, 2) \cup (3, \infty) || x<2 \text{ or } x>3
(2,12) \cup (12,102) || x \in (12,102) \cup (2,12)
[1/2, \infty) || x \in [0.5, +\infty)
a_{n}=2n+1 || 2n+1
\text{Area} = 5 || 5
x=1/2, y=3 || (\frac12, 3)
3:1 || 3 : 1
1:2 || 2:4
1:2 || \frac{1}{2}
09:38 || 9:38
x^2+y^2=1 || x^{2}=1-y^2
# several parts
1,2,3 || 3,2,1
1,2,3 || \{1,2,3\}
\{1,2\} || \{2,1\}
1,-2 || -2 \text{ and } 1
3, 5, 7 || 3,5, and 7
\{1\pm\sqrt{5},-2\} || -2, 1+\sqrt5, 1-\sqrt5
1 \pm \sqrt{19} || 1+\sqrt{19}, 1-\sqrt{19}
1-\sqrt{19}, 1+\sqrt{19} || 1\pm\sqrt{19}
\pm 2021 || -2021, 2021
x = \pm 2 || 2,-2
n=1,2,3 || 1,2,3
$69$,$84$ || 84, 69
(2,4) || \left( 2, 4 \right)
\left( 3, \frac{\pi}{2} \right) || (3,\pi/2)
(x,y)=(5,8) || (5,8)
(6,31,-1) || (6, 31, -1)
(1,8,19), (2,7,13), (4,5,7) || (4,5,7),(1,8,19),(2,7,13)
p=5,q=2;p=7,q=2 || (5,2),(7,2)
(2,5) || 2,5
(0,9) \cup (9,36) || (9,36)\cup(0,9)
a_3 = 2, a_{37} = 19 || a_{37}=19, a_3=2
{0} || 0
$(2+\sqrt{2}, 1+\sqrt{2})$ || (2+\sqrt2,1+\sqrt2)
\emptyset || \{\}
6 \text{ and } 8 || 8, 6
(-\infty, 0) \cup\{1\}. || \{1\} \cup (-\infty,0)
# matrices
\begin{pmatrix}1\\2\end{pmatrix} || \begin{bmatrix} 1 \\ 2 \end{bmatrix}
\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix} || \begin{pmatrix} \frac15 \\ -3.6 \end{pmatrix}
\begin{pmatrix}6 & 8 \\ 10 & 12\end{pmatrix} || 2\begin{pmatrix}3 & 4 \\ 5 & 6\end{pmatrix}
\begin{pmatrix} -7 \\ 16 \\ 5 \end{pmatrix} || (-7, 16, 5)
\begin{pmatrix} \sqrt{2}/2 \\ 0 \end{pmatrix} || \begin{pmatrix} 1/\sqrt2 \\ 0 \end{pmatrix}
# words, choices, bases
\text{Evelyn} || Evelyn
\text{even} || \textbf{Even}
\text{ellipse} || \text{an ellipse}
7 minutes and 5 seconds || 7 \text{ minutes and } 5 \text{ seconds}
\mathbb{R} || \mathbb R
\mbox{four} || four
\text{(C)} || C
\text{(C)} || (C)
\text{(C)} || \text{(C) } 7
\text{C} || c
\text{(E)} || e
C || c
52_8 || 52_{8}
4210_{5} || 4210_5
2516_8 || 2516_{\text{8}}
\text{east} || \text{East.}
not enough information || \text{Not enough information}
m || m
\alpha || \alpha
E_{1},E_{2} || E_1, E_2
SRAC=LRAC || \text{SRAC} = \text{LRAC}
\text{odd} || odd
3\sqrt{2} || \boxed{3\sqrt{2}}
\(\boxed{4489}\) || 4489
\[ 195 \] || 195
# geometry
103 || 103^\circ
103 || m\angle A = 103^\circ
103 || 103 \text{ degrees}
6.4 || 6.40
10 \pi || 10π
\frac { 21 \sqrt 2 } { 2 } || 10.5\sqrt{2}
9 \sqrt 2 \pi || 9\pi\sqrt{2}
2:3 || \frac{2}{3}
x < 60 || 60 > x
- 1 || -1
20 y^2 - 10 y || 10y(2y-1)
\angle 2 and \angle 6 || \angle 2 \text{ and } \angle 6
\angle 1 \cong \angle 4 || \angle 1 \cong \angle 4
a + b = 90 || a+b=90
40 / 3 || 13\frac{1}{3}
""")

WRONG = _read(r"""
# numbers that are close, or that look alike
1e-7 || 4e-7
4e-7 || 1e-7
\frac{1}{2^{99}} || \frac{1}{2^{98}}
2^{-299} || 2^{-298}
2^{10000} || 2^{10000}+1
10^{100} || 10^{101}
10^{1000} || 10^{1000}+1
0.0000672 || 0.000067
.0000672 || .0000671
2.45e6 || 2.4e6
4.5e33 || 4.5e34
4.5e33 || 4.5e
4.5e33 || 4.5
7 \times 10^{37} || 7
\frac{1}{3} || 0.33
\frac{1}{3} || 0.333
\frac{1}{3} || 0.33333
123456789 || 1.23457\times 10^8
1234567 || 1.23456\cdot10^{6}
1000000000000 || 1000000000000.5
# words that make another number
5 || 5 million
5 || 5 \text{ million}
5 million || 5 billion
12 || 12 dozen
3 || 3 times two
10 || 10 minus two
10 || 10 \text{ plus two feet}
5 || 5 factorial
5 || 5 squared
2 || 2 thirds
5 || 5 hundred twenty
\sqrt{2} || 1.41
\pi || 3.14
\pi || \frac{22}{7}
\pi || 3.1415927\ldots
8 || 8.0001
1000000 || 1000001
1000000 || 1000000.5
16386.17 || 16386.16
123456789 || 123456788
0 || 10^{-20}
0 || 1e-9
\sqrt{10^{200}+1} || 10^{100}
1-10^{-60} || 1
e^{-200} || e^{-201}
12 || 1 2
2 || 1 2
12 || 1 \cdot 2
\frac{1}{2} || 2
3/12 || 4
025 || 250
12 || -12
1,234 || 234
1234 || 1.234
10! || 10
24^5 || 245
1\frac{4}{5} || \frac{4}{5}
1\frac{4}{5} || \frac{14}{5}
18.90 || 18.09
100 || 1
4 || 4\sqrt{2}
# letters taken for units
3t || 3
3 || 3t
2s || 2
4m || 4
4 || 4m
2k || 2
2 || 2n
6m || 6
3R^2 || 3
7.6Z || 7.6
5h || 5
30w+12 || 42
m || M
x^2 || y^2
x || y
n || m
# units that differ
10\text{ cm} || 10\text{ m}
10\text{ cm} || 10\text{ cm}^2
15\mbox{ cm}^2 || 15\text{ cm}
20\text{ miles} || 20\text{ km}
5\text{ minutes} || 5\text{ hours}
50\% || 5
50\% || 500
0.5 || 5\%
90^\circ || 90\text{ radians}
6 \text{ PM} || 6 \text{ AM}
3 North || 3 South
3\text{ N} || 3\text{ S}
8 \text{ apples} || 8 \text{ oranges}
10 \text{ m} || 10 \text{ m squared}
5 \text{ miles} || 5 \text{ nautical miles}
20 \text{ m/s} || 20 \text{ m/s}^2
\frac{\pi}{2} || 90
# equations and relations
5 || 2x=5
5 || x^2=5
5 || x+1=5
5 || x=6
x=5 || y=5
x=5 || x=-5
x^2+1=0 || x^2+2=0
5 || x>5
5 || x \ne 5
x>5 || x<5
x \ge 5 || x>5
x>3 || y>3
x<60 || 60
x \ge 3 || (3,\infty)
x<1 || (1,\infty)
7 = 11a+c || 11a+c
y=2x+3 || y=2x-3
2x-3y=0 || 3x-2y=0
x+y-z+2=0 || 5x-7y+11z+4=0
x \ne 0 || 0
0<x<1 || 0<x<2
0<x<1 || 0 \le x<1
f(x)=x || f(x)=-x
\frac{dx}{dt} = kx - a || kx+a
# structure
\{2,5\} || (2,5)
(2,5) || \{2,5\}
2,5 || (2,5)
(2,5) || [2,5]
(-3,2) || [-3,2]
[0,1) || (0,1]
[0,1) || [0,9)
[0,1) || 0,1
[2,5] || \{2,5\}
(2,5) || (5,2)
(3,1) || \{1,3\}
(1,3,2) || [1,2,3]
8 || 7 \text{ or } 8
8 || 7, 8
8 || 8, 8, 9
1,2 || 1
1 || 1,2
1,2,3 || 1,2
1,2,3 || 1,2,4
1,2,3 || 1,2,3,4
-2,-2 || -2
1 \pm \sqrt{19} || 1+\sqrt{19}
1+\sqrt{19} || 1\pm\sqrt{19}
\pm 2 || 2
2 || \pm 2
(x,y)=(5,8) || (8,5)
x=1, y=2 || 2, 1
x=1, y=2 || x=2, y=1
(1,2),(3,4) || (1,2),(4,3)
(1,2),(3,4) || 1,2,3,4
(0,9) \cup (9,36) || (0,36)
(-\infty,2)\cup(3,\infty) || (2,3)
(-\infty, 0] || (-\infty, 0)
(5,\infty) || (5,\infty]
n=2,3,4 || n=1,2,3
\sqrt{67} || \sqrt{67},-\sqrt{85}
(2,\infty) || 2
\infty || -\infty
\infty || 0
\emptyset || 0
0 || \emptyset
0 || \{\}
\begin{pmatrix}1\\2\end{pmatrix} || \begin{pmatrix}2\\1\end{pmatrix}
\begin{pmatrix}1\\2\end{pmatrix} || \begin{pmatrix}1&2\end{pmatrix}
\begin{pmatrix}1 & 2 \\ 3 & 4\end{pmatrix} || \begin{pmatrix}1 & 2 \\ 3 & 5\end{pmatrix}
\begin{pmatrix}1 & 2 \\ 3 & 4\end{pmatrix} || -2
\begin{pmatrix}1\\2\end{pmatrix} || 1,2
\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix} || 1
# words, choices, bases, ratios
\text{(C)} || B
\text{(C)} || \text{(B) } C
C || D
\text{Evelyn} || Eve
\text{oddd} || odd
\text{even} || \text{not even}
8 || \text{none}
8 || \text{eight or nine}
52_8 || 52
52_8 || 42
52_8 || 52_9
1_6 || 1
12:00 || 1:00
09:38 || 9:36
3:1 || 1:3
3:1 || 31
1:2:3 || 1:2
1-\frac{1}{e} || 1+\frac{1}{e}
\frac{3}{8} || \frac{3}{16}
x^2+2x+1 || x^2+2x-1
\sqrt{x^2} || x
\lfloor\frac{2n-1}{5}\rfloor || \frac{2n-1}{5}
2 \sin b \cos a || 2 \sin a \cos b
6+9i || 6-9i
(a+5)(b+2) || (+5)(b+2)
E_1, E_2 || E_1, E_3
f(x)=x+1 || x
\pi(R^2-r^2) || 0
\sqrt{1-\frac{2r}{R}} || i
3R^2 || 3r^2
x+y || x+\sqrt{y^2}
2^{1009} || 2^{1008}
3n+1 || 3n
\text{A} || \text{B,E}
\text{B,E} || B
1 || l
0 || O
E || e
E || \text{e}
\frac{1}{2} || \frac{1}{2}\frac{1}{2}
9 \text{ inches} || 9 \text{ feet}
7 || 7 \text{ or so, or } 9
# geometry
6.4 || \sqrt{41}
10 \pi || 31.4
10 \pi || 10
2:3 || 3:2
x < 60 || 60
\angle 2 and \angle 6 || \angle 2
a + b = 90 || a+b
""")
