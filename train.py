"""Pre-trains, fine-tunes or extends a decoder (tape/commands/train.py).

python train.py position=tape                      # minutes on two cores
python train.py position=rope model=base experiment=paper data=text data.files=corpus/
python train.py -m position=tape,rope,alibi seed=0,1,2
"""

from tape.commands.train import main

if __name__ == "__main__":
    main()
